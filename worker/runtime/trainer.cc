// The loop: orders, switches, step, evaluation, checkpoint, until the last
// step.
#include "worker/runtime/trainer.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/status.h"
#include "worker/checkpoint/native.h"
#include "worker/data/token_source.h"
#include "worker/optimizer/decay_groups.h"
#include "worker/optimizer/schedule.h"
#include "worker/program/cost_profile.h"
#include "worker/program/job_programs.h"
#include "worker/runtime/arena_memory.h"
#include "worker/runtime/executor.h"
#include "worker/runtime/model_state.h"
#include "worker/runtime/op_times.h"
#include "worker/runtime/prepared_plan.h"
#include "worker/runtime/resident_memory.h"
#include "worker/runtime/timing_device.h"

namespace ebb {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool Due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

// The first `num_sequences` of a source; what lies beyond is padding.
class LimitedSource final : public BatchSource {
 public:
  LimitedSource(BatchSource& source, int64_t num_sequences, int64_t seq_len)
      : source_(source), num_sequences_(num_sequences), seq_len_(seq_len) {}

  absl::Status Fill(int64_t first_sequence, std::span<int32_t> tokens,
                    std::span<int32_t> targets) override {
    const int64_t left = std::max<int64_t>(0, num_sequences_ - first_sequence);
    const size_t count =
        std::min(tokens.size(), static_cast<size_t>(left * seq_len_));
    std::fill(tokens.begin() + count, tokens.end(), 0);
    std::fill(targets.begin() + count, targets.end(), -1);
    if (count == 0) return absl::OkStatus();
    return source_.Fill(first_sequence, tokens.first(count),
                        targets.first(count));
  }

 private:
  BatchSource& source_;
  const int64_t num_sequences_;
  const int64_t seq_len_;
};

// Where parameters and moments lie is all that a switch may not change: they
// stay.
bool SameState(const Program& a, const Program& b) {
  if (a.state_bytes != b.state_bytes ||
      a.host_state_bytes != b.host_state_bytes ||
      a.disk_state_bytes != b.disk_state_bytes ||
      a.parameters.size() != b.parameters.size()) {
    return false;
  }
  for (size_t n = 0; n < a.parameters.size(); ++n) {
    const ParameterLayout& x = a.parameters[n];
    const ParameterLayout& y = b.parameters[n];
    if (x.name != y.name || x.parameter != y.parameter ||
        x.master != y.master || x.first_moment != y.first_moment ||
        x.second_moment != y.second_moment) {
      return false;
    }
  }
  return true;
}

}  // namespace

// Steps whose ops are timed, from the second one on: the first also warms up.
constexpr int64_t kTimedSteps = 3;

// Members are in the order in which they need each other.
struct Trainer::State {
  explicit State(TrainerSetup trainer_setup) : setup(std::move(trainer_setup)) {
    auto timing = std::make_unique<TimingDevice>(std::move(setup.device));
    timing_device = timing.get();
    setup.device = std::move(timing);
  }

  // Parameters and the optimizer's state, where the plan has them.
  struct StateMemory {
    ArenaMemory device;
    ArenaMemory host;
    std::unique_ptr<DiskFile> disk;
  };

  // What runs a plan's programs on the arenas.
  struct Executors {
    std::unique_ptr<Executor> training;
    std::unique_ptr<Executor> evaluation;  // null: no evaluation
  };

  // Creation, in this order.
  absl::Status Check() const;
  absl::Status TakePlan();
  absl::Status FillWeights();

  // Plans.
  absl::StatusOr<std::unique_ptr<PreparedPlan>> Prepare(const Plan& plan) const;
  absl::Status TakeArenas(const PreparedPlan& wanted);
  absl::Status Take(int64_t bytes, absl::string_view what, ArenaMemory* arena);
  ArenaView Arenas(const JobPrograms& programs) const;
  absl::Status TakeStepArenas(const PreparedPlan& wanted);
  absl::Status TakeDisk(const PreparedPlan& wanted);
  bool FitsArenas(const PreparedPlan& wanted) const;
  absl::StatusOr<Executors> MakeExecutors(const PreparedPlan& wanted) const;
  void PutInForce(std::unique_ptr<PreparedPlan> plan, Executors made,
                  std::vector<Plan> plan_ladder);
  // An error ends the training: no plan is in force.
  absl::Status FollowSwitches(TrainerObserver& observer);
  absl::Status SwitchTo(SwitchQueue::Due due, PlanChange* change);
  absl::Status ReplaceArenas(std::unique_ptr<PreparedPlan> wanted,
                             std::vector<Plan> wanted_ladder,
                             PlanChange* change);
  static void TrimArena(int64_t bytes, ArenaMemory* arena);
  void TrimArenas();
  void LookAtState();
  absl::Status ClimbDown(const absl::Status& cause, PlanChange* change);

  // Running.
  absl::Status Train(TrainerObserver& observer);
  absl::Status FollowOrders(TrainerObserver& observer);
  absl::StatusOr<StepReport> RunStep(int64_t step);
  absl::StatusOr<StepReport> RunTimedStep(int64_t step,
                                          TrainerObserver& observer);
  std::optional<std::string> DiskInUse() const;
  absl::Status CountSkipped(const StepReport& report);
  absl::Status Evaluate(TrainerObserver& observer);
  void Save(TrainerObserver& observer);
  absl::StatusOr<int64_t> WriteAndPrune(TrainerObserver& observer) const;
  void LogStart(TrainerObserver& observer) const;

  const JobSpec& spec() const { return setup.spec; }
  bool evaluates() const { return spec().eval.every > 0; }

  TrainerSetup setup;
  TimingDevice* timing_device = nullptr;  // setup.device
  int64_t evaluation_sequences = 0;
  std::vector<std::string> start_notes;
  PlanChange start_change;  // number 0: status says whether there was one

  // The plan in force, and what to do if its arenas cannot be had again.
  std::unique_ptr<PreparedPlan> prepared;
  std::vector<Plan> ladder;
  std::optional<StateMemory> state;  // once it is taken, to the end
  ArenaMemory step_arena;
  ArenaMemory host_arena;          // empty: nothing goes to host memory
  std::unique_ptr<DiskFile> disk;  // null: nothing goes to disk
  Executors executors;
  std::unique_ptr<ModelState> model;

  int64_t last_step = 0;
  int64_t next_position = 0;  // in the training order
  int num_skipped = 0;        // consecutive
  int64_t steps_run = 0;      // of this attempt
  OpTimes op_times;
  double checkpoint_seconds = 0;  // since the last step

  SwitchQueue switches{[this](const Plan& plan) { return Prepare(plan); }};
};

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(TrainerSetup setup) {
  auto state = std::make_unique<State>(std::move(setup));
  EBB_RETURN_IF_ERROR(state->Check());
  EBB_RETURN_IF_ERROR(state->TakePlan());
  EBB_RETURN_IF_ERROR(state->FillWeights());
  return std::unique_ptr<Trainer>(new Trainer(std::move(state)));
}

Trainer::Trainer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Trainer::~Trainer() = default;

TrainerFinish Trainer::Run(TrainerObserver& observer) {
  TrainerFinish finish;
  finish.status = state_->Train(observer);
  finish.last_step = state_->last_step;
  const absl::StatusOr<uint64_t> hash = state_->model->Hash();
  if (hash.ok()) {
    finish.weights_hash = *hash;
  } else if (finish.status.ok()) {
    finish.status = hash.status();
  }
  return finish;
}

const std::vector<std::string>& Trainer::plan_differences() const {
  return state_->prepared->differences;
}

absl::Status Trainer::State::Check() const {
  if (setup.device->backend().kind != "cpu") {
    return absl::UnimplementedError(absl::StrCat("training on ",
                                                 setup.device->backend().kind,
                                                 " is not built: only cpu is"));
  }
  if (evaluates() &&
      (setup.validation == nullptr || setup.validation_sequences < 1)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "eval.every is ", spec().eval.every,
        " but there is no sequence to evaluate on: set data.validation"));
  }
  return absl::OkStatus();
}

// The plan of the setup or, if memory cannot be had, the first of the ladder
// for which it can.
absl::Status Trainer::State::TakePlan() {
  evaluation_sequences = EvalSequences(spec().eval.batches, spec().global_batch,
                                       setup.validation_sequences);
  EBB_ASSIGN_OR_RETURN(std::unique_ptr<PreparedPlan> wanted,
                       Prepare(setup.plan));
  wanted->offload_directory = setup.offload_directory;
  const absl::Status taken = TakeArenas(*wanted);
  if (absl::IsResourceExhausted(taken)) {
    ladder = std::move(setup.ladder);
    return ClimbDown(taken, &start_change);
  }
  EBB_RETURN_IF_ERROR(taken);
  EBB_ASSIGN_OR_RETURN(Executors made, MakeExecutors(*wanted));
  PutInForce(std::move(wanted), std::move(made), std::move(setup.ladder));
  return absl::OkStatus();
}

// Called by the thread that prepares switches, too.
absl::StatusOr<std::unique_ptr<PreparedPlan>> Trainer::State::Prepare(
    const Plan& plan) const {
  return PreparePlan(spec(), plan, setup.device->backend(),
                     std::max<int64_t>(1, evaluation_sequences));
}

// Takes the arenas that are not there.
absl::Status Trainer::State::TakeArenas(const PreparedPlan& wanted) {
  const JobPrograms& programs = wanted.programs;
  if (state.has_value()) return TakeStepArenas(wanted);
  Device& device = *setup.device;
  const int64_t runtime_bytes = device.backend().runtime_bytes;
  const Program& training = programs.training;
  const int64_t host_bytes = programs.host_bytes + training.host_state_bytes;
  // On a CPU what is in host memory is taken from the same memory.
  const int64_t need =
      training.state_bytes + programs.step_bytes + host_bytes + runtime_bytes;
  if (const int64_t have = device.AvailableBytes(); need > have) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the job does not fit: need ", need, " bytes (state arena ",
        training.state_bytes, ", step arena ", programs.step_bytes,
        ", host arena ", host_bytes, ", runtime ", runtime_bytes, "), have ",
        have, ": rank ", wanted.plan.ranks[0].rank));
  }
  StateMemory taken;
  EBB_RETURN_IF_ERROR(Take(training.state_bytes, "state arena", &taken.device));
  EBB_RETURN_IF_ERROR(Take(training.host_state_bytes,
                           "state arena in host memory", &taken.host));
  if (training.disk_state_bytes > 0) {
    EBB_ASSIGN_OR_RETURN(
        taken.disk,
        DiskFile::Create(wanted.offload_directory, training.disk_state_bytes));
  }
  EBB_RETURN_IF_ERROR(TakeStepArenas(wanted));
  state = std::move(taken);
  return absl::OkStatus();
}

// Fills *arena, which is empty; with nothing, if `bytes` is 0.
absl::Status Trainer::State::Take(int64_t bytes, absl::string_view what,
                                  ArenaMemory* arena) {
  if (bytes == 0) return absl::OkStatus();
  absl::StatusOr<ArenaMemory> taken =
      ArenaMemory::Allocate(*setup.device, bytes);
  if (!taken.ok()) return Annotate(taken.status(), what);
  *arena = *std::move(taken);
  return absl::OkStatus();
}

// The step arena may have more than the programs need: it stays out of the
// books.
ArenaView Trainer::State::Arenas(const JobPrograms& programs) const {
  ArenaView arenas;
  arenas.state = state->device.data();
  arenas.state_bytes = state->device.bytes();
  arenas.step = step_arena.data();
  arenas.step_bytes = programs.step_bytes;
  arenas.host = host_arena.data();
  arenas.host_bytes = programs.host_bytes;
  arenas.disk = disk.get();
  arenas.disk_bytes = programs.disk_bytes;
  arenas.host_state = state->host.data();
  arenas.host_state_bytes = state->host.bytes();
  arenas.disk_state = state->disk.get();
  arenas.disk_state_bytes = state->disk == nullptr ? 0 : state->disk->bytes();
  return arenas;
}

// Takes the step and the host arena where the present one is too small: that
// one goes first, since two may not fit side by side, and so does what the
// other has too much. The file grows where it is, and before all, so that a
// full disk moves no arena.
absl::Status Trainer::State::TakeStepArenas(const PreparedPlan& wanted) {
  const auto take = [this](int64_t bytes, const char* what,
                           ArenaMemory* arena) -> absl::Status {
    if (bytes <= arena->bytes()) return absl::OkStatus();
    *arena = ArenaMemory();
    if (const int64_t have = setup.device->AvailableBytes(); bytes > have) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the ", what, " arena does not fit: need ", bytes,
                       " bytes, have ", have));
    }
    return Take(bytes, absl::StrCat(what, " arena"), arena);
  };
  EBB_RETURN_IF_ERROR(TakeDisk(wanted));
  TrimArena(wanted.programs.step_bytes, &step_arena);
  TrimArena(wanted.programs.host_bytes, &host_arena);
  EBB_RETURN_IF_ERROR(take(wanted.programs.step_bytes, "step", &step_arena));
  return take(wanted.programs.host_bytes, "host", &host_arena);
}

absl::Status Trainer::State::TakeDisk(const PreparedPlan& wanted) {
  const int64_t bytes = wanted.programs.disk_bytes;
  if (bytes == 0) return absl::OkStatus();
  if (disk != nullptr && disk->directory() == wanted.offload_directory) {
    return bytes <= disk->bytes() ? absl::OkStatus() : disk->Grow(bytes);
  }
  EBB_ASSIGN_OR_RETURN(disk, DiskFile::Create(wanted.offload_directory, bytes));
  return absl::OkStatus();
}

bool Trainer::State::FitsArenas(const PreparedPlan& wanted) const {
  const JobPrograms& programs = wanted.programs;
  const bool fits_disk =
      programs.disk_bytes == 0 ||
      (disk != nullptr && disk->directory() == wanted.offload_directory &&
       programs.disk_bytes <= disk->bytes());
  return programs.step_bytes <= step_arena.bytes() &&
         programs.host_bytes <= host_arena.bytes() && fits_disk;
}

// Gives back all but the first `bytes`.
void Trainer::State::TrimArena(int64_t bytes, ArenaMemory* arena) {
  if (bytes == 0) {
    *arena = ArenaMemory();
  } else if (bytes < arena->bytes()) {
    arena->Shrink(bytes);
  }
}

// Gives back what the plan in force does not need.
void Trainer::State::TrimArenas() {
  const JobPrograms& programs = prepared->programs;
  TrimArena(programs.step_bytes, &step_arena);
  TrimArena(programs.host_bytes, &host_arena);
  if (programs.disk_bytes == 0) {
    disk.reset();
  } else {
    disk->Shrink(programs.disk_bytes);
  }
}

absl::StatusOr<Trainer::State::Executors> Trainer::State::MakeExecutors(
    const PreparedPlan& wanted) const {
  const JobPrograms& programs = wanted.programs;
  const ArenaView arenas = Arenas(programs);
  const ExecutorOptions options = {.precision = spec().precision,
                                   .poison = setup.poison,
                                   .offload = setup.offload};
  Executors made;
  EBB_ASSIGN_OR_RETURN(
      made.training,
      Executor::Create(programs.training, *setup.device, arenas, options));
  if (evaluates()) {
    EBB_ASSIGN_OR_RETURN(
        made.evaluation,
        Executor::Create(*programs.evaluation, *setup.device, arenas, options));
  }
  return made;
}

void Trainer::State::PutInForce(std::unique_ptr<PreparedPlan> plan,
                                Executors made, std::vector<Plan> plan_ladder) {
  executors = std::move(made);
  prepared = std::move(plan);
  ladder = std::move(plan_ladder);
  LookAtState();
}

// It refers to the graph, which came with the plan, and to the arenas.
void Trainer::State::LookAtState() {
  model = std::make_unique<ModelState>(prepared->programs.graph,
                                       prepared->programs.training,
                                       Arenas(prepared->programs));
}

absl::Status Trainer::State::FillWeights() {
  if (!setup.resume_from.empty()) {
    EBB_ASSIGN_OR_RETURN(const CheckpointReader reader,
                         CheckpointReader::Open(setup.resume_from));
    EBB_RETURN_IF_ERROR(model->ReadAll(reader));
    last_step = reader.meta().step;
    next_position = reader.meta().sequences;
    start_notes.push_back(absl::StrCat("continues from ", setup.resume_from,
                                       ": step ", last_step,
                                       ", sequences consumed ", next_position));
    return absl::OkStatus();
  }
  const std::string& init_from = spec().checkpoint.init_from;
  if (init_from.empty()) {
    return model->Initialize(spec().seed);
  }
  EBB_ASSIGN_OR_RETURN(const std::vector<std::string> unused,
                       model->ReadWeights(init_from, spec().model));
  start_notes.push_back(absl::StrCat("weights from ", init_from));
  if (!unused.empty()) {
    start_notes.push_back(absl::StrCat("not in this model and left out: ",
                                       absl::StrJoin(unused, ", ")));
  }
  return absl::OkStatus();
}

absl::Status Trainer::State::Train(TrainerObserver& observer) {
  LogStart(observer);
  observer.OnStarted(state->device.bytes(), step_arena.bytes(),
                     prepared->differences);
  if (start_change.rung > 0) {
    start_change.step = last_step + 1;
    observer.OnPlanChanged(start_change, prepared->plan);
  }
  while (last_step < spec().steps) {
    EBB_RETURN_IF_ERROR(FollowOrders(observer));
    EBB_RETURN_IF_ERROR(FollowSwitches(observer));
    EBB_ASSIGN_OR_RETURN(const StepReport report,
                         RunTimedStep(last_step + 1, observer));
    last_step = report.step;
    next_position += spec().global_batch;
    observer.OnStep(report);
    EBB_RETURN_IF_ERROR(CountSkipped(report));
    if (Due(spec().eval.every, last_step) ||
        (evaluates() && last_step == spec().steps)) {
      EBB_RETURN_IF_ERROR(Evaluate(observer));
    }
    if (Due(spec().checkpoint.every, last_step)) Save(observer);
  }
  // An order to cancel finds the work done.
  FollowOrders(observer).IgnoreError();
  return absl::OkStatus();
}

absl::Status Trainer::State::FollowOrders(TrainerObserver& observer) {
  while (true) {
    switch (observer.NextOrder()) {
      case TrainerOrder::kNone:
        return absl::OkStatus();
      case TrainerOrder::kCancel:
        return absl::CancelledError(
            absl::StrCat("cancelled after step ", last_step));
      case TrainerOrder::kCheckpoint:
        Save(observer);
        break;
    }
  }
}

absl::StatusOr<StepReport> Trainer::State::RunTimedStep(
    int64_t step, TrainerObserver& observer) {
  ++steps_run;
  if (steps_run == 1 || steps_run > 1 + kTimedSteps) return RunStep(step);
  const Program& program = executors.training->program();
  timing_device->StartTiming(OpTimes::NumLaunches(program));
  EBB_ASSIGN_OR_RETURN(const StepReport report, RunStep(step));
  EBB_RETURN_IF_ERROR(op_times.Add(program, timing_device->backend(),
                                   timing_device->StopTiming()));
  if (steps_run == 1 + kTimedSteps) {
    std::map<std::string, double> means = std::exchange(op_times, {}).Means();
    const auto add_copies = [&](bool on_disk, const std::string& place) {
      const CopyStream::Made made = executors.training->copies_made(on_disk);
      if (made.bytes() == 0 || made.seconds == 0) return;
      means[CopyKey(place)] =
          made.seconds / (static_cast<double>(made.bytes()) / (1 << 20));
    };
    add_copies(false, kHostPlace);
    if (const auto directory = DiskInUse(); directory.has_value()) {
      add_copies(true, DiskPlace(*directory == setup.default_offload_directory
                                     ? ""
                                     : *directory));
    }
    AddEncodeErrors(program.encode_errors, report.encode_errors,
                    /*is_of_a_job=*/true, means);
    observer.OnOpTimes(means);
  }
  return report;
}

// The directory to and from which steps copy; none: there is no such or, after
// a switch that cannot take the optimizer's state along, there are two.
std::optional<std::string> Trainer::State::DiskInUse() const {
  const DiskFile* const of_state = state->disk.get();
  if (disk == nullptr && of_state == nullptr) return std::nullopt;
  if (disk == nullptr) return of_state->directory();
  if (of_state != nullptr && of_state->directory() != disk->directory()) {
    return std::nullopt;
  }
  return disk->directory();
}

absl::Status Trainer::State::FollowSwitches(TrainerObserver& observer) {
  for (PlanSwitch& order : observer.TakeSwitches()) {
    switches.Add(std::move(order));
  }
  while (true) {
    std::optional<SwitchQueue::Due> due = switches.TakeDue(last_step + 1);
    if (!due.has_value()) return absl::OkStatus();
    const Clock::time_point start = Clock::now();
    PlanChange change;
    change.number = due->order.number;
    change.step = last_step + 1;
    EBB_RETURN_IF_ERROR(SwitchTo(*std::move(due), &change));
    // The old programs go back to the system.
    malloc_trim(0);
    change.duration_seconds = SecondsSince(start);
    observer.OnPlanChanged(change, prepared->plan);
  }
}

// Afterwards a plan is in force: the wanted one, the one before, or a smaller
// one; *change says which.
absl::Status Trainer::State::SwitchTo(SwitchQueue::Due due,
                                      PlanChange* change) {
  const std::byte* const address = step_arena.data();
  if (due.prepared.ok()) {
    (*due.prepared)->offload_directory = due.order.offload_directory;
  }
  if (!due.prepared.ok()) {
    change->status = due.prepared.status();
  } else if (std::unique_ptr<PreparedPlan> wanted = *std::move(due.prepared);
             !SameState(wanted->programs.training,
                        prepared->programs.training)) {
    change->status = absl::FailedPreconditionError(
        "the plan lays parameters and moments out otherwise: only a new "
        "attempt can take it");
  } else if (!FitsArenas(*wanted)) {
    EBB_RETURN_IF_ERROR(
        ReplaceArenas(std::move(wanted), std::move(due.order.ladder), change));
  } else if (absl::StatusOr<Executors> made = MakeExecutors(*wanted);
             made.ok()) {
    PutInForce(std::move(wanted), *std::move(made),
               std::move(due.order.ladder));
    TrimArenas();
  } else {
    change->status = made.status();
  }
  change->step_arena_bytes = step_arena.bytes();
  change->step_arena_moved = step_arena.data() != address;
  change->differences = prepared->differences;
  return absl::OkStatus();
}

absl::Status Trainer::State::ReplaceArenas(std::unique_ptr<PreparedPlan> wanted,
                                           std::vector<Plan> wanted_ladder,
                                           PlanChange* change) {
  const auto take =
      [this](const PreparedPlan& plan) -> absl::StatusOr<Executors> {
    EBB_RETURN_IF_ERROR(TakeStepArenas(plan));
    return MakeExecutors(plan);
  };
  executors = Executors();
  // Its directory may be gone meanwhile: it is given up only when nothing leads
  // back to it.
  std::unique_ptr<DiskFile> file_in_force;
  if (wanted->programs.disk_bytes > 0 && disk != nullptr &&
      disk->directory() != wanted->offload_directory) {
    file_in_force = std::move(disk);
  }
  absl::StatusOr<Executors> made = take(*wanted);
  if (made.ok()) {
    PutInForce(std::move(wanted), *std::move(made), std::move(wanted_ladder));
    TrimArenas();
    return absl::OkStatus();
  }
  change->status = made.status();
  if (file_in_force != nullptr) disk = std::move(file_in_force);
  made = take(*prepared);
  if (!made.ok()) return ClimbDown(made.status(), change);
  executors = *std::move(made);
  LookAtState();
  TrimArenas();
  return absl::OkStatus();
}

// No arenas can be had for the plan in force: takes the first of the ladder for
// which they can, whatever the others lack, memory or a disk, and keeps the
// cause if there is no other.
absl::Status Trainer::State::ClimbDown(const absl::Status& cause,
                                       PlanChange* change) {
  absl::Status last = cause;
  for (size_t n = 0; n < ladder.size(); ++n) {
    EBB_ASSIGN_OR_RETURN(std::unique_ptr<PreparedPlan> smaller,
                         Prepare(ladder[n]));
    smaller->offload_directory = prepared == nullptr
                                     ? setup.offload_directory
                                     : prepared->offload_directory;
    step_arena = ArenaMemory();
    host_arena = ArenaMemory();
    last = TakeArenas(*smaller);
    if (!last.ok()) continue;
    EBB_ASSIGN_OR_RETURN(Executors made, MakeExecutors(*smaller));
    PutInForce(std::move(smaller), std::move(made),
               {ladder.begin() + static_cast<int64_t>(n) + 1, ladder.end()});
    TrimArenas();
    change->rung = static_cast<int>(n) + 1;
    if (change->status.ok()) change->status = cause;
    change->step_arena_bytes = step_arena.bytes();
    change->differences = prepared->differences;
    return absl::OkStatus();
  }
  if (ladder.empty()) return cause;
  return Annotate(
      last, absl::StrCat("the smallest of ", ladder.size() + 1, " plans, ",
                         PolicyName(ladder.back().policy)));
}

absl::StatusOr<StepReport> Trainer::State::RunStep(int64_t step) {
  const double learning_rate =
      LearningRate(spec().optimizer, spec().lr_schedule, spec().steps, step);
  StepScalars scalars;
  scalars.seed = spec().seed;
  scalars.step = step;
  scalars.learning_rate = static_cast<float>(learning_rate);
  absl::StatusOr<StepReport> report =
      executors.training->RunStep(scalars, *setup.train, next_position);
  if (!report.ok()) {
    return Annotate(report.status(), absl::StrCat("step ", step));
  }
  report->learning_rate = learning_rate;
  report->phases.checkpoint = std::exchange(checkpoint_seconds, 0);
  report->duration_seconds += report->phases.checkpoint;
  EBB_ASSIGN_OR_RETURN(report->resident_bytes, ResidentBytes());
  return report;
}

absl::Status Trainer::State::CountSkipped(const StepReport& report) {
  const bool bad = report.skipped || !std::isfinite(report.loss);
  num_skipped = bad ? num_skipped + 1 : 0;
  if (num_skipped < kMostSkippedSteps) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "training diverged: loss or gradient norm not finite in ", num_skipped,
      " steps in a row, the last with loss ", report.loss,
      " and gradient norm ", report.gradient_norm, ": step ", report.step));
}

absl::Status Trainer::State::Evaluate(TrainerObserver& observer) {
  LimitedSource source(*setup.validation, evaluation_sequences,
                       spec().eval.seq_len);
  StepScalars scalars;
  scalars.seed = spec().seed;
  scalars.step = last_step;
  EBB_ASSIGN_OR_RETURN(const StepReport report,
                       executors.evaluation->RunStep(scalars, source, 0));
  observer.OnEval(
      {last_step, report.loss, report.tokens, report.duration_seconds});
  return absl::OkStatus();
}

void Trainer::State::Save(TrainerObserver& observer) {
  const Clock::time_point start = Clock::now();
  CheckpointResult result;
  result.step = last_step;
  if (absl::StatusOr<int64_t> bytes = WriteAndPrune(observer); bytes.ok()) {
    result.bytes = *bytes;
    result.directory = absl::StrCat(setup.checkpoint_directory, "/",
                                    CheckpointName(last_step));
  } else {
    result.status = bytes.status();
  }
  // What the manifests took goes back to the system, so that a save leaves the
  // process as large as it was.
  malloc_trim(0);
  result.duration_seconds = SecondsSince(start);
  checkpoint_seconds += result.duration_seconds;
  observer.OnCheckpoint(result);
}

absl::StatusOr<int64_t> Trainer::State::WriteAndPrune(
    TrainerObserver& observer) const {
  CheckpointMeta meta;
  meta.step = last_step;
  meta.attempt = setup.attempt;
  meta.seed = spec().seed;
  meta.sequences = next_position;
  meta.graph_fingerprint = prepared->programs.graph.Fingerprint();
  meta.spec = setup.spec_text;
  EBB_ASSIGN_OR_RETURN(
      const int64_t bytes,
      WriteCheckpoint(setup.checkpoint_directory, meta, model->Tensors()));
  // The new one is complete: older ones that stay only take space.
  if (const auto removed =
          PruneCheckpoints(setup.checkpoint_directory, spec().checkpoint.keep);
      !removed.ok()) {
    observer.OnLog(absl::StrCat("old checkpoints could not be removed: ",
                                removed.status().message()));
  }
  return bytes;
}

void Trainer::State::LogStart(TrainerObserver& observer) const {
  const std::string groups = DescribeDecayGroups(
      FindDecayGroups(prepared->programs.graph), spec().optimizer.weight_decay);
  for (absl::string_view line :
       absl::StrSplit(groups, '\n', absl::SkipEmpty())) {
    observer.OnLog(line);
  }
  for (const std::string& note : start_notes) observer.OnLog(note);
  const auto log_file = [&](const char* what, const DiskFile* file) {
    if (file == nullptr) return;
    observer.OnLog(absl::StrCat(
        what, " in ", file->directory(), ", ", file->bytes(), " bytes, ",
        file->is_direct() ? "around" : "through", " the page cache"));
  };
  log_file("values wait", disk.get());
  log_file("the optimizer's state waits", state->disk.get());
  for (const std::string& difference : prepared->differences) {
    observer.OnLog(absl::StrCat("plan and program differ: ", difference));
  }
}

}  // namespace ebb
