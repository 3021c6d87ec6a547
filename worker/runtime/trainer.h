// The training loop of one rank: programs, arenas, steps, evaluations,
// checkpoints. Knows neither protobuf nor sockets; what happens goes out
// through TrainerObserver, and orders come in through it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/device.h"
#include "worker/model/job_spec.h"
#include "worker/program/plan.h"
#include "worker/program/step_report.h"
#include "worker/runtime/batch_source.h"
#include "worker/runtime/offload.h"
#include "worker/runtime/prepared_plan.h"

namespace ebb {

// Consecutive skipped steps (loss or gradient norm not finite) after which the
// job fails. A training run that recovers does so within a handful; the weights
// do not change meanwhile, so waiting longer only hides the fault.
constexpr int kMostSkippedSteps = 20;

struct CheckpointResult {
  int64_t step = 0;
  std::string directory;  // empty if saving failed
  int64_t bytes = 0;
  double duration_seconds = 0;
  absl::Status status;  // a failed save does not end the job
};

enum class TrainerOrder : uint8_t {
  kNone,
  kCancel,      // stop at this step boundary and finish as CANCELLED
  kCheckpoint,  // save at this step boundary
};

// Another plan than before is in force, or is not although it was ordered.
struct PlanChange {
  // Of the switch; 0: the arenas of the setup's own plan could not be had.
  int64_t number = 0;
  // OK: the wanted plan is in force. Else why it is not.
  absl::Status status;
  // First step under the plan that is in force.
  int64_t step = 0;
  // 1, 2, ...: the plan in force is this one of the ladder of the plan before
  // (at the start: of the setup); 0: none of them.
  int rung = 0;
  int64_t step_arena_bytes = 0;
  bool step_arena_moved = false;  // its address is another
  // From the end of one step to the moment when the next may begin.
  double duration_seconds = 0;
  // As in OnStarted.
  std::vector<std::string> differences;
};

// All calls come from the thread that calls Trainer::Run.
class TrainerObserver {
 public:
  virtual ~TrainerObserver() = default;

  // Arenas are populated and the next thing is a step. `differences`: where the
  // plan's bytes and the program's disagree, one line each; empty when they
  // agree.
  virtual void OnStarted(int64_t state_bytes, int64_t step_bytes,
                         const std::vector<std::string>& differences) = 0;
  // Tells of a change before the first step under it; at the start after
  // OnStarted.
  virtual void OnPlanChanged(const PlanChange& change,
                             const Plan& in_force) = 0;
  // phases.checkpoint: seconds of the checkpoints that were written between the
  // step before and this one; duration_seconds includes them.
  virtual void OnStep(const StepReport& report) = 0;
  virtual void OnEval(const EvalResult& result) = 0;
  virtual void OnCheckpoint(const CheckpointResult& result) = 0;
  // What each op took (OpTimes::Means), once, after the first steps.
  virtual void OnOpTimes(const std::map<std::string, double>& seconds) = 0;
  // One line for the job's log.
  virtual void OnLog(absl::string_view line) = 0;
  // Polled before every step, and after the last one, until it says kNone. Must
  // return at once.
  virtual TrainerOrder NextOrder() = 0;
  // Polled before every step: switches that have come since, by number. Must
  // return at once.
  virtual std::vector<PlanSwitch> TakeSwitches() = 0;
};

struct TrainerSetup {
  JobSpec spec;
  Plan plan;
  // If the arenas of `plan` cannot be had, the first of these that can is
  // taken; in order of falling peak.
  std::vector<Plan> ladder;
  std::unique_ptr<Device> device;
  // Positions 0, 1, 2, ... are the sequences of the job's training order.
  BatchSource* train = nullptr;
  // Evaluation data in its own order, of spec.eval.seq_len tokens a sequence;
  // null if spec.eval.every is 0. One evaluation covers eval.batches global
  // batches of it or, where it has fewer, all that it has.
  BatchSource* validation = nullptr;
  int64_t validation_sequences = 0;  // that it has
  // Directory under which step-N directories are written.
  std::string checkpoint_directory;
  // Checkpoint to continue from: weights, moments, step and data position.
  // Empty: start at step 0, with the weights of spec.checkpoint.init_from if
  // that is set.
  std::string resume_from;
  // Written into checkpoints, for people and later attempts.
  int attempt = 0;
  std::string spec_text;  // effective spec; UTF-8
  bool poison = false;    // values that a program drops become NaN
  OffloadOptions offload = {};
  std::string offload_directory;  // for values that wait on disk
  // The one of plans for which the spec names none.
  std::string default_offload_directory;
};

struct TrainerFinish {
  absl::Status status;  // CANCELLED after an order
  int64_t last_step = 0;
  uint64_t weights_hash = 0;  // of all parameters in order of their names
};

// Create, run and destroy on one thread. `train`, `validation`
// and the observer must outlive it.
class Trainer {
 public:
  // Builds graphs and programs, checks the plan against them, takes and
  // populates the arenas, and fills the weights. Errors: FAILED_PRECONDITION
  // for a plan of another graph or evaluation without data, UNIMPLEMENTED for
  // missing kernels (all of them), RESOURCE_EXHAUSTED if the arenas of no plan
  // fit (need and have of the last), those of DiskFile and of reading a
  // checkpoint.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(TrainerSetup setup);
  ~Trainer();

  // Trains to the last step of the spec, an order to cancel, or an error.
  // Called once.
  TrainerFinish Run(TrainerObserver& observer);

  // Where the bytes of the plan in force and those of its program differ, one
  // line each.
  const std::vector<std::string>& plan_differences() const;

 private:
  struct State;
  explicit Trainer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace ebb
