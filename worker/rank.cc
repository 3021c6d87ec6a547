// Glue between the stream of reports and the trainer.
#include "worker/rank.h"

#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/device.h"
#include "kernels/status.h"
#include "monitoring/log.h"
#include "proto/convert.h"
#include "proto/report_file.h"
#include "proto/spec_writer.h"
#include "proto/worker_service.pb.h"
#include "worker/data/token_source.h"
#include "worker/report.h"
#include "worker/runtime/trainer.h"
#include "worker/signal_watch.h"

namespace ebb {
namespace {

absl::StatusOr<std::string> ReadText(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not set: a rank is started by its supervisor"));
  }
  return std::string(value);
}

absl::StatusOr<int> ReadNumber(const char* name, int least) {
  EBB_ASSIGN_OR_RETURN(std::string text, ReadText(name));
  int number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < least) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": got '", text, "': must be a number from ", least, " on"));
  }
  return number;
}

bool IsSwitchedOn(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && absl::string_view(value) == "1";
}

// Turns what the trainer says into reports.
class ReportingObserver final : public TrainerObserver {
 public:
  // `plan` has this rank.
  ReportingObserver(const RankEnvironment& environment, const Plan& plan,
                    ReportStream* stream, OrderMailbox* mailbox)
      : environment_(environment), stream_(*stream), mailbox_(*mailbox) {
    PutInForce(plan);
  }

  void OnStarted(int64_t state_bytes, int64_t step_bytes,
                 const std::vector<std::string>& differences) override {
    v1::Started started;
    started.set_state_arena_bytes(state_bytes);
    started.set_step_arena_bytes(step_bytes);
    for (const std::string& difference : differences) {
      started.add_plan_differences(difference);
    }
    EBB_LOG(INFO) << "started: state arena " << state_bytes << " B, step arena "
                  << step_bytes << " B";
    stream_.Start(started);
  }

  void OnPlanChanged(const PlanChange& change, const Plan& in_force) override {
    PutInForce(in_force);
    v1::RankReport message;
    v1::Switched& switched = *message.mutable_switched();
    switched.set_number(change.number);
    switched.set_code(static_cast<int>(change.status.code()));
    switched.set_message(std::string(change.status.message()));
    switched.set_step(change.step);
    switched.set_rung(change.rung);
    switched.set_step_arena_bytes(change.step_arena_bytes);
    switched.set_step_arena_moved(change.step_arena_moved);
    switched.set_duration_seconds(change.duration_seconds);
    for (const std::string& difference : change.differences) {
      switched.add_plan_differences(difference);
      EBB_LOG(WARNING) << "plan and program differ: " << difference;
    }
    if (!change.status.ok()) {
      EBB_LOG(WARNING) << "the wanted plan is not in force: "
                       << change.status.ToString();
    }
    EBB_LOG(INFO) << "policy " << PolicyName(policy_) << " from step "
                  << change.step << " on: step arena "
                  << change.step_arena_bytes << " B"
                  << (change.step_arena_moved ? ", moved" : "") << ", "
                  << change.duration_seconds << " s";
    stream_.Report(message);
  }

  void OnStep(const StepReport& report) override {
    v1::RankReport message;
    *message.mutable_step() =
        StepToMessage(report, environment_.attempt, PolicyName(policy_),
                      predicted_, absl::Now());
    EBB_LOG(INFO) << "step " << report.step << ": loss " << report.loss
                  << ", gradient norm " << report.gradient_norm << ", "
                  << report.duration_seconds << " s"
                  << (report.skipped ? ", skipped" : "");
    stream_.Report(message);
  }

  void OnEval(const EvalResult& result) override {
    v1::RankReport message;
    *message.mutable_eval() = EvalToMessage(result, environment_.attempt);
    EBB_LOG(INFO) << "evaluation after step " << result.step << ": loss "
                  << result.loss;
    stream_.Report(message);
  }

  void OnCheckpoint(const CheckpointResult& result) override {
    v1::RankReport message;
    v1::CheckpointReport& checkpoint = *message.mutable_checkpoint();
    checkpoint.set_step(result.step);
    checkpoint.set_attempt(environment_.attempt);
    checkpoint.set_directory(result.directory);
    checkpoint.set_bytes(result.bytes);
    checkpoint.set_duration_seconds(result.duration_seconds);
    if (result.status.ok()) {
      EBB_LOG(INFO) << "checkpoint of step " << result.step << ": "
                    << result.directory;
    } else {
      EBB_LOG(ERROR) << "checkpoint of step " << result.step
                     << " failed: " << result.status.ToString();
      checkpoint.set_error(std::string(result.status.message()));
    }
    stream_.Report(message);
  }

  void OnOpTimes(const std::map<std::string, double>& seconds) override {
    v1::RankReport message;
    message.mutable_op_times()->mutable_seconds()->insert(seconds.begin(),
                                                          seconds.end());
    stream_.Report(message);
  }

  void OnLog(absl::string_view line) override { EBB_LOG(INFO) << line; }

  TrainerOrder NextOrder() override { return mailbox_.Take(); }

  std::vector<PlanSwitch> TakeSwitches() override {
    std::vector<PlanSwitch> switches = mailbox_.TakeSwitches();
    for (PlanSwitch& order : switches) {
      order.offload_directory =
          environment_.OffloadDirectory(order.offload_directory);
    }
    return switches;
  }

 private:
  void PutInForce(const Plan& plan) {
    policy_ = plan.policy;
    for (const RankPlan& rank : plan.ranks) {
      if (rank.rank == environment_.rank) predicted_ = rank;
    }
  }

  const RankEnvironment& environment_;
  // Of the plan in force.
  Policy policy_ = Policy::kNone;
  RankPlan predicted_;
  ReportStream& stream_;
  OrderMailbox& mailbox_;
};

absl::Status CheckHasRank(const Plan& plan, int rank) {
  for (const RankPlan& candidate : plan.ranks) {
    if (candidate.rank == rank) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the plan has no rank ", rank));
}

// Everything between the assignment and the last report.
absl::StatusOr<TrainerFinish> Train(const RankEnvironment& environment,
                                    const v1::Assignment& assignment,
                                    ReportStream* stream,
                                    OrderMailbox* mailbox) {
  EBB_ASSIGN_OR_RETURN(const JobSpec spec,
                       JobSpecFromMessage(assignment.spec()));
  EBB_ASSIGN_OR_RETURN(const Plan plan, PlanFromMessage(assignment.plan()));
  EBB_RETURN_IF_ERROR(CheckHasRank(plan, environment.rank));

  const Backend backend = DescribeCpu(spec.threads);
  stream->SetBackend(BackendToMessage(backend));
  if (std::string difference = BackendDifference(plan.backend, backend);
      !difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this machine is not the plan's: ", difference));
  }

  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<TokenSource> train,
      TokenSource::OpenTraining(spec, static_cast<int64_t>(plan.ranks.size())));
  std::unique_ptr<TokenSource> validation;
  if (spec.eval.every > 0) {
    EBB_ASSIGN_OR_RETURN(validation, TokenSource::OpenEvaluation(spec));
  }

  TrainerSetup setup;
  setup.spec = spec;
  setup.plan = plan;
  EBB_ASSIGN_OR_RETURN(setup.ladder, PlansFromMessages(assignment.ladder()));
  EBB_ASSIGN_OR_RETURN(setup.device, MakeCpuDevice(backend));
  setup.train = train.get();
  setup.validation = validation.get();
  setup.validation_sequences =
      validation == nullptr ? 0 : validation->num_sequences();
  setup.checkpoint_directory =
      absl::StrCat(assignment.directory(), "/checkpoints");
  setup.resume_from = assignment.resume_from();
  setup.attempt = environment.attempt;
  setup.spec_text = SpecToJson(assignment.spec());
  setup.poison = environment.poison || assignment.poison();
  setup.offload.check = environment.check_offload;
  setup.offload_directory =
      environment.OffloadDirectory(spec.memory.offload_dir);
  setup.default_offload_directory = environment.attempt_directory;
  EBB_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                       Trainer::Create(std::move(setup)));
  ReportingObserver observer(environment, plan, stream, mailbox);
  return trainer->Run(observer);
}

}  // namespace

absl::StatusOr<RankEnvironment> RankEnvironment::Read() {
  RankEnvironment environment;
  EBB_ASSIGN_OR_RETURN(environment.job, ReadText("EBB_JOB"));
  EBB_ASSIGN_OR_RETURN(environment.attempt, ReadNumber("EBB_ATTEMPT", 1));
  EBB_ASSIGN_OR_RETURN(environment.rank, ReadNumber("EBB_RANK", 0));
  EBB_ASSIGN_OR_RETURN(environment.server, ReadText("EBB_SERVER"));
  EBB_ASSIGN_OR_RETURN(environment.attempt_directory,
                       ReadText("EBB_ATTEMPT_DIRECTORY"));
  environment.poison = IsSwitchedOn("EBB_POISON");
  environment.check_offload = IsSwitchedOn("EBB_OFFLOAD_CHECK");
  return environment;
}

std::string RankEnvironment::OffloadDirectory(const std::string& named) const {
  return named.empty() ? attempt_directory : named;
}

std::string BackendDifference(const Backend& planned, const Backend& found) {
  std::vector<std::string> parts;
  const auto compare = [&](const char* what, const auto& want,
                           const auto& have) {
    if (want != have) {
      parts.push_back(
          absl::StrCat(what, " is ", have, ", the plan is for ", want));
    }
  };
  compare("kind", planned.kind, found.kind);
  compare("device_model", planned.device_model, found.device_model);
  compare("instruction_set", planned.instruction_set, found.instruction_set);
  compare("threads", planned.threads, found.threads);
  compare("libraries", planned.libraries, found.libraries);
  return absl::StrJoin(parts, "; ");
}

int RunRank(const RankEnvironment& environment, const std::string& version) {
  // The supervisor runs /proc/self/exe, and "exe" says little in a list.
  prctl(PR_SET_NAME, "ebb-worker");
  SetLogFields({environment.job, environment.attempt, environment.rank});
  signal(SIGPIPE, SIG_IGN);
  // A file that may not grow that far is an error of the call.
  signal(SIGXFSZ, SIG_IGN);
  BlockStopSignals();

  OrderMailbox mailbox;
  ReportStreamOptions options;
  options.server = environment.server;
  options.job = environment.job;
  options.attempt = environment.attempt;
  options.rank = environment.rank;
  options.version = version;
  options.report_file =
      ReportFilePath(environment.attempt_directory, environment.rank);
  ReportStream stream(options, &mailbox);
  SignalWatch watch([&](int signal) {
    EBB_LOG(INFO) << "signal " << signal << ": ending at the next step";
    mailbox.Post(TrainerOrder::kCancel);
    stream.Stop();
  });

  absl::StatusOr<v1::Assignment> assignment = stream.AwaitAssignment();
  if (absl::IsCancelled(assignment.status())) {
    EBB_LOG(INFO) << assignment.status().message();
    return 0;
  }
  if (!assignment.ok()) {
    EBB_LOG(ERROR) << "no assignment: " << assignment.status().ToString();
    return 1;
  }

  absl::StatusOr<TrainerFinish> trained =
      Train(environment, *assignment, &stream, &mailbox);
  TrainerFinish finish;
  if (trained.ok()) {
    finish = *std::move(trained);
  } else {
    finish.status = trained.status();
  }
  v1::Finished finished;
  finished.set_code(static_cast<int>(finish.status.code()));
  finished.set_message(std::string(finish.status.message()));
  finished.set_last_step(finish.last_step);
  finished.set_weights_hash(finish.weights_hash);
  const bool well = finish.status.ok() || absl::IsCancelled(finish.status);
  if (well) {
    EBB_LOG(INFO) << "finished after step " << finish.last_step << ": "
                  << finish.status.ToString();
  } else {
    EBB_LOG(ERROR) << "failed after step " << finish.last_step << ": "
                   << finish.status.ToString();
  }
  if (absl::Status status = stream.Finish(finished); !status.ok()) {
    EBB_LOG(ERROR) << "the last reports are lost: " << status.ToString();
    return 1;
  }
  return well ? 0 : 1;
}

}  // namespace ebb
