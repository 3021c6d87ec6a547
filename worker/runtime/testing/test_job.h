// Whole jobs in one process, small enough for tests: spec, data, plan, trainer
// and what it reported.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/model/job_spec.h"
#include "worker/program/job_programs.h"
#include "worker/program/plan.h"
#include "worker/runtime/batch_source.h"
#include "worker/runtime/trainer.h"

namespace ebb {

// Layers 4, hidden 64, heads 4, ffn 256, vocab 257, seq 32, untied, no dropout;
// micro 2, global 8, 6 steps, seed 1234, fp32, AdamW with lr 1e-3 constant,
// betas 0.9 and 0.95, decay 0.1, clip 1.
JobSpec SmallJob();

// The same with a Llama-like model: grouped-query attention of 2 key/value
// heads, ffn 192.
JobSpec SmallLlamaJob();

// Tokens t[i] = (7919 i + 104729 (i div 7)) mod 257, for ever: sequence s is
// t[s * seq_len ..], its targets are shifted by one.
class FormulaSource final : public BatchSource {
 public:
  explicit FormulaSource(int64_t seq_len) : seq_len_(seq_len) {}
  absl::Status Fill(int64_t first_sequence, std::span<int32_t> tokens,
                    std::span<int32_t> targets) override;

 private:
  const int64_t seq_len_;
};

// A CPU device with the spec's threads.
std::unique_ptr<Device> MakeTestDevice(const JobSpec& spec);

// The plan of the spec's policy for one rank, with its bytes, and the programs
// that a trainer makes of it.
struct PlannedJob {
  Plan plan;
  JobPrograms programs;
};
PlannedJob PlanTestJob(const JobSpec& spec, const Backend& backend);

// What a job reported.
struct JobRun {
  int64_t state_bytes = 0;
  int64_t step_bytes = 0;
  int64_t resident_at_start = 0;  // when OnStarted was called
  std::vector<std::string> differences;
  std::vector<StepReport> steps;
  std::vector<EvalResult> evals;
  std::vector<CheckpointResult> checkpoints;
  std::map<std::string, double> op_seconds;
  std::vector<PlanChange> changes;
  std::vector<Policy> policies;  // in force, by step
  std::vector<std::string> log;
  TrainerFinish finish;
};

// An observer that keeps everything and gives orders from a list.
class RecordingObserver : public TrainerObserver {
 public:
  struct TimedOrder {
    int64_t after_step;
    TrainerOrder order;
  };

  void OnStarted(int64_t state_bytes, int64_t step_bytes,
                 const std::vector<std::string>& differences) override;
  void OnStep(const StepReport& report) override;
  void OnEval(const EvalResult& result) override;
  void OnCheckpoint(const CheckpointResult& result) override;
  void OnOpTimes(const std::map<std::string, double>& seconds) override;
  void OnLog(absl::string_view line) override;
  void OnPlanChanged(const PlanChange& change, const Plan& in_force) override;
  TrainerOrder NextOrder() override;
  std::vector<PlanSwitch> TakeSwitches() override;

  std::vector<TimedOrder> orders;
  // Given after the step that they name (0: before the first).
  std::vector<std::pair<int64_t, PlanSwitch>> switches;
  Policy policy = Policy::kNone;  // in force
  JobRun run;
};

struct TestJobOptions {
  bool poison = true;
  int64_t validation_sequences = 0;
  std::string checkpoint_directory = {};
  std::string resume_from = {};
  std::vector<RecordingObserver::TimedOrder> orders = {};
  // Instead of that of the spec's policy.
  std::optional<Plan> plan = {};
  OffloadOptions offload = {};
  std::vector<std::pair<int64_t, PlanSwitch>> switches = {};
  std::string offload_directory = {};  // empty: /tmp
};

// A setup for Trainer::Create that reads formula data. The sources live as long
// as the process.
TrainerSetup MakeSetup(const JobSpec& spec, const TestJobOptions& options = {});

// Creates a trainer and runs it to its end. A failure to create is in
// finish.status.
JobRun RunJob(const JobSpec& spec, const TestJobOptions& options = {});

// Expects that the run ended well with the bits of `base`: loss and gradient
// norm of every step, loss of every evaluation, weights.
void ExpectSameBits(const JobRun& run, const JobRun& base);

// Expects the bytes of every step's report to be the plan's, and those of its
// copies to be what the program's instructions copy.
void ExpectMeasuredAsPlanned(const JobSpec& spec, const JobRun& run);

}  // namespace ebb
