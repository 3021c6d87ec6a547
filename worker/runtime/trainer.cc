// The loop: orders, step, evaluation, checkpoint, until the last step.
#include "worker/runtime/trainer.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/status.h"
#include "worker/checkpoint/native.h"
#include "worker/data/token_source.h"
#include "worker/optimizer/decay_groups.h"
#include "worker/optimizer/schedule.h"
#include "worker/program/job_programs.h"
#include "worker/runtime/arena_memory.h"
#include "worker/runtime/executor.h"
#include "worker/runtime/model_state.h"
#include "worker/runtime/op_times.h"
#include "worker/runtime/plan_check.h"
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

  // Creation, in this order.
  absl::Status Check() const;
  absl::Status MakePrograms();
  absl::Status TakeArenas();
  absl::Status MakeExecutors();
  absl::Status FillWeights();

  // Running.
  absl::Status Train(TrainerObserver& observer);
  absl::Status FollowOrders(TrainerObserver& observer);
  absl::StatusOr<StepReport> RunStep(int64_t step);
  absl::StatusOr<StepReport> RunTimedStep(int64_t step,
                                          TrainerObserver& observer);
  absl::Status CountSkipped(const StepReport& report);
  absl::Status Evaluate(TrainerObserver& observer);
  void Save(TrainerObserver& observer);
  absl::StatusOr<int64_t> WriteAndPrune(TrainerObserver& observer) const;
  void LogStart(TrainerObserver& observer) const;

  const JobSpec& spec() const { return setup.spec; }
  bool evaluates() const { return spec().eval.every > 0; }

  TrainerSetup setup;
  TimingDevice* timing_device = nullptr;  // setup.device
  JobPrograms programs;
  int64_t evaluation_sequences = 0;
  std::vector<std::string> plan_differences;
  std::vector<std::string> start_notes;

  ArenaMemory state_arena;
  ArenaMemory step_arena;
  ArenaMemory host_arena;  // empty: nothing is offloaded
  std::unique_ptr<ModelState> model;
  std::unique_ptr<Executor> training_executor;
  std::unique_ptr<Executor> evaluation_executor;  // null: no evaluation

  int64_t last_step = 0;
  int64_t next_position = 0;  // in the training order
  int num_skipped = 0;        // consecutive
  int64_t steps_run = 0;      // of this attempt
  OpTimes op_times;
  double checkpoint_seconds = 0;  // since the last step
};

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(TrainerSetup setup) {
  auto state = std::make_unique<State>(std::move(setup));
  EBB_RETURN_IF_ERROR(state->Check());
  EBB_RETURN_IF_ERROR(state->MakePrograms());
  EBB_RETURN_IF_ERROR(state->TakeArenas());
  EBB_RETURN_IF_ERROR(state->MakeExecutors());
  EBB_RETURN_IF_ERROR(state->FillWeights());
  return std::unique_ptr<Trainer>(new Trainer(std::move(state)));
}

Trainer::Trainer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Trainer::~Trainer() = default;

TrainerFinish Trainer::Run(TrainerObserver& observer) {
  TrainerFinish finish;
  finish.status = state_->Train(observer);
  finish.last_step = state_->last_step;
  finish.weights_hash = WeightsHash();
  return finish;
}

const std::vector<std::string>& Trainer::plan_differences() const {
  return state_->plan_differences;
}

uint64_t Trainer::WeightsHash() { return state_->model->Hash(); }

absl::Status Trainer::State::Check() const {
  if (setup.device->backend().kind != "cpu") {
    return absl::UnimplementedError(absl::StrCat("training on ",
                                                 setup.device->backend().kind,
                                                 " is not built: only cpu is"));
  }
  if (setup.plan.ranks.size() != 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the plan is for ", setup.plan.ranks.size(), " ranks: want 1"));
  }
  if (evaluates() &&
      (setup.validation == nullptr || setup.validation_sequences < 1)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "eval.every is ", spec().eval.every,
        " but there is no sequence to evaluate on: set data.validation"));
  }
  return absl::OkStatus();
}

absl::Status Trainer::State::MakePrograms() {
  evaluation_sequences = EvalSequences(spec().eval.batches, spec().global_batch,
                                       setup.validation_sequences);
  EBB_ASSIGN_OR_RETURN(programs,
                       LowerJob(spec(), setup.plan, setup.device->backend(),
                                std::max<int64_t>(1, evaluation_sequences)));
  plan_differences = ComparePlan(setup.plan.ranks[0],
                                 PredictRank(programs, setup.plan.backend));
  return absl::OkStatus();
}

absl::Status Trainer::State::TakeArenas() {
  Device& device = *setup.device;
  const int64_t state_bytes = programs.training.state_bytes;
  const int64_t step_bytes = programs.step_bytes;
  const int64_t host_bytes = programs.host_bytes;
  // On a CPU the host arena is taken from the same memory.
  const int64_t need =
      state_bytes + step_bytes + host_bytes + device.backend().runtime_bytes;
  if (const int64_t have = device.AvailableBytes(); need > have) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the job does not fit: need ", need, " bytes (state arena ",
        state_bytes, ", step arena ", step_bytes, ", host arena ", host_bytes,
        ", runtime ", device.backend().runtime_bytes, "), have ", have,
        ": rank ", setup.plan.ranks[0].rank));
  }
  EBB_ASSIGN_OR_RETURN(state_arena, ArenaMemory::Allocate(device, state_bytes));
  EBB_ASSIGN_OR_RETURN(step_arena, ArenaMemory::Allocate(device, step_bytes));
  absl::StatusOr<ArenaMemory> host = ArenaMemory::Allocate(device, host_bytes);
  if (!host.ok()) {
    return Annotate(host.status(), "host memory for offloaded values");
  }
  host_arena = *std::move(host);
  return absl::OkStatus();
}

absl::Status Trainer::State::MakeExecutors() {
  const ArenaView arenas = {state_arena.data(), state_arena.bytes(),
                            step_arena.data(),  step_arena.bytes(),
                            host_arena.data(),  host_arena.bytes()};
  const ExecutorOptions options = {.precision = spec().precision,
                                   .poison = setup.poison,
                                   .offload = setup.offload};
  model =
      std::make_unique<ModelState>(programs.graph, programs.training, arenas);
  EBB_ASSIGN_OR_RETURN(
      training_executor,
      Executor::Create(programs.training, *setup.device, arenas, options));
  if (!evaluates()) return absl::OkStatus();
  EBB_ASSIGN_OR_RETURN(
      evaluation_executor,
      Executor::Create(*programs.evaluation, *setup.device, arenas, options));
  return absl::OkStatus();
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
    model->Initialize(spec().seed);
    return absl::OkStatus();
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
  observer.OnStarted(state_arena.bytes(), step_arena.bytes(), plan_differences);
  while (last_step < spec().steps) {
    EBB_RETURN_IF_ERROR(FollowOrders(observer));
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
  const Program& program = training_executor->program();
  timing_device->StartTiming(OpTimes::NumLaunches(program));
  EBB_ASSIGN_OR_RETURN(const StepReport report, RunStep(step));
  EBB_RETURN_IF_ERROR(op_times.Add(program, timing_device->backend(),
                                   timing_device->StopTiming()));
  if (steps_run == 1 + kTimedSteps) {
    observer.OnOpTimes(std::exchange(op_times, {}).Means());
  }
  return report;
}

absl::StatusOr<StepReport> Trainer::State::RunStep(int64_t step) {
  const double learning_rate =
      LearningRate(spec().optimizer, spec().lr_schedule, spec().steps, step);
  StepScalars scalars;
  scalars.seed = spec().seed;
  scalars.step = step;
  scalars.learning_rate = static_cast<float>(learning_rate);
  absl::StatusOr<StepReport> report =
      training_executor->RunStep(scalars, *setup.train, next_position);
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
                       evaluation_executor->RunStep(scalars, source, 0));
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
  meta.graph_fingerprint = programs.graph.Fingerprint();
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
      FindDecayGroups(programs.graph), spec().optimizer.weight_decay);
  for (absl::string_view line :
       absl::StrSplit(groups, '\n', absl::SkipEmpty())) {
    observer.OnLog(line);
  }
  for (const std::string& note : start_notes) observer.OnLog(note);
  for (const std::string& difference : plan_differences) {
    observer.OnLog(absl::StrCat("plan and program differ: ", difference));
  }
}

}  // namespace ebb
