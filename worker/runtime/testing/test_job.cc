// Specs, formula data and the recording observer.
#include "worker/runtime/testing/test_job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <utility>

#include "kernels/status.h"
#include "worker/model/testing/llama_like.h"
#include "worker/program/policy.h"
#include "worker/runtime/resident_memory.h"

namespace ebb {
namespace {

template <typename T>
T Expect(absl::StatusOr<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n",
                 std::string(result.status().message()).c_str());
  }
  EBB_CHECK(result.ok());
  return *std::move(result);
}

BatchSource* KeepSource(int64_t seq_len) {
  static auto& sources = *new std::deque<FormulaSource>;
  return &sources.emplace_back(seq_len);
}

// What one step of a training program copies, by its instructions.
CopiedBytes CopiesOf(const Program& program) {
  CopiedBytes copied;
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    const Block& block = program.blocks[b];
    const int n = static_cast<int>(b);
    const bool repeats =
        n >= program.begin_microbatch && n < program.end_microbatch;
    for (const Instruction& instruction : block.instructions) {
      const bool is_offload = instruction.kind == InstructionKind::kOffload;
      if (!is_offload && instruction.kind != InstructionKind::kPrefetch) {
        continue;
      }
      int64_t times = 0;
      for (int64_t i = 0; i < block.count; ++i) {
        times += block.Runs(instruction, i) ? 1 : 0;
      }
      if (repeats) times *= program.num_microbatches;
      const int32_t place = instruction.operands[is_offload ? 1 : 0].buffer;
      const bool on_disk = IsOnDisk(block.buffers[place].address.arena);
      int64_t& out = on_disk ? copied.to_disk : copied.to_host;
      int64_t& back = on_disk ? copied.from_disk : copied.from_host;
      (is_offload ? out : back) += times * instruction.operands[0].type.bytes();
    }
  }
  return copied;
}

int32_t Token(int64_t i) {
  return static_cast<int32_t>((7919 * i + 104729 * (i / 7)) % 257);
}

}  // namespace

JobSpec SmallJob() {
  JobSpec spec;
  spec.name = "small";
  spec.model.layers = 4;
  spec.model.hidden = 64;
  spec.model.heads = 4;
  spec.model.kv_heads = 4;
  spec.model.ffn = 256;
  spec.model.vocab = 257;
  spec.model.seq_len = 32;
  spec.model.tied_embeddings = false;
  spec.global_batch = 8;
  spec.micro_batch = 2;
  spec.steps = 6;
  spec.precision = DType::kF32;
  spec.lr_schedule.decay = LrDecay::kConstant;
  spec.eval.micro = 2;
  spec.eval.seq_len = 32;
  // Thread sanitizer runs ask for one: OpenMP's team is not instrumented.
  const char* const threads = std::getenv("OMP_NUM_THREADS");
  spec.threads =
      threads != nullptr && absl::string_view(threads) == "1" ? 1 : 2;
  return spec;
}

JobSpec SmallLlamaJob() {
  JobSpec spec = SmallJob();
  spec.model.ffn = 192;
  spec.model = LlamaLike(spec.model, 2);
  return spec;
}

absl::Status FormulaSource::Fill(int64_t first_sequence,
                                 std::span<int32_t> tokens,
                                 std::span<int32_t> targets) {
  const int64_t first = first_sequence * seq_len_;
  for (size_t n = 0; n < tokens.size(); ++n) {
    tokens[n] = Token(first + static_cast<int64_t>(n));
    targets[n] = Token(first + static_cast<int64_t>(n) + 1);
  }
  return absl::OkStatus();
}

std::unique_ptr<Device> MakeTestDevice(const JobSpec& spec) {
  return Expect(MakeCpuDevice(DescribeCpu(spec.threads)));
}

PlannedJob PlanTestJob(const JobSpec& spec, const Backend& backend) {
  PlannedJob job;
  job.plan =
      Expect(MakePolicyPlan(Expect(BuildTrainingGraph(spec)), spec.memory));
  job.programs = Expect(LowerJob(spec, job.plan, backend, 1));
  job.plan.ranks = {PredictRank(job.programs, backend)};
  job.plan.backend = backend;
  return job;
}

void RecordingObserver::OnStarted(int64_t state_bytes, int64_t step_bytes,
                                  const std::vector<std::string>& differences) {
  run.state_bytes = state_bytes;
  run.step_bytes = step_bytes;
  run.resident_at_start = ResidentBytes().value_or(0);
  run.differences = differences;
}
void RecordingObserver::OnStep(const StepReport& report) {
  run.steps.push_back(report);
  run.policies.push_back(policy);
}
void RecordingObserver::OnEval(const EvalResult& result) {
  run.evals.push_back(result);
}
void RecordingObserver::OnCheckpoint(const CheckpointResult& result) {
  run.checkpoints.push_back(result);
}
void RecordingObserver::OnOpTimes(
    const std::map<std::string, double>& seconds) {
  run.op_seconds = seconds;
}
void RecordingObserver::OnLog(absl::string_view line) {
  run.log.emplace_back(line);
}
TrainerOrder RecordingObserver::NextOrder() {
  const int64_t step = run.steps.empty() ? 0 : run.steps.back().step;
  const auto due = std::find_if(
      orders.begin(), orders.end(),
      [&](const TimedOrder& order) { return order.after_step == step; });
  if (due == orders.end()) return TrainerOrder::kNone;
  const TrainerOrder order = due->order;
  orders.erase(due);
  return order;
}

void RecordingObserver::OnPlanChanged(const PlanChange& change,
                                      const Plan& in_force) {
  run.changes.push_back(change);
  policy = in_force.policy;
}

std::vector<PlanSwitch> RecordingObserver::TakeSwitches() {
  const int64_t step = run.steps.empty() ? 0 : run.steps.back().step;
  std::vector<PlanSwitch> due;
  std::erase_if(switches, [&](const std::pair<int64_t, PlanSwitch>& timed) {
    if (timed.first != step) return false;
    due.push_back(timed.second);
    return true;
  });
  return due;
}

TrainerSetup MakeSetup(const JobSpec& spec, const TestJobOptions& options) {
  TrainerSetup setup;
  setup.spec = spec;
  setup.device = MakeTestDevice(spec);
  setup.plan = options.plan.has_value()
                   ? *options.plan
                   : PlanTestJob(spec, setup.device->backend()).plan;
  setup.train = KeepSource(spec.model.seq_len);
  setup.validation = KeepSource(spec.eval.seq_len);
  setup.validation_sequences = options.validation_sequences;
  setup.checkpoint_directory = options.checkpoint_directory;
  setup.resume_from = options.resume_from;
  setup.poison = options.poison;
  setup.offload = options.offload;
  setup.offload_directory =
      options.offload_directory.empty() ? "/tmp" : options.offload_directory;
  setup.default_offload_directory = "/tmp";
  return setup;
}

JobRun RunJob(const JobSpec& spec, const TestJobOptions& options) {
  RecordingObserver observer;
  observer.orders = options.orders;
  observer.switches = options.switches;
  observer.policy = spec.memory.policy;
  // Room for the reports, touched now: what the test keeps is not growth.
  observer.run.steps.resize(spec.steps);
  observer.run.steps.clear();
  auto trainer = Trainer::Create(MakeSetup(spec, options));
  if (!trainer.ok()) {
    observer.run.finish.status = trainer.status();
    return observer.run;
  }
  observer.run.finish = (*trainer)->Run(observer);
  return observer.run;
}

void ExpectSameBits(const JobRun& run, const JobRun& base) {
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  ASSERT_EQ(run.steps.size(), base.steps.size());
  for (size_t n = 0; n < run.steps.size(); ++n) {
    EXPECT_EQ(run.steps[n].step, base.steps[n].step);
    EXPECT_EQ(std::bit_cast<uint64_t>(run.steps[n].loss),
              std::bit_cast<uint64_t>(base.steps[n].loss))
        << "loss of step " << n + 1;
    EXPECT_EQ(std::bit_cast<uint64_t>(run.steps[n].gradient_norm),
              std::bit_cast<uint64_t>(base.steps[n].gradient_norm))
        << "gradient norm of step " << n + 1;
  }
  ASSERT_EQ(run.evals.size(), base.evals.size());
  for (size_t n = 0; n < run.evals.size(); ++n) {
    EXPECT_EQ(std::bit_cast<uint64_t>(run.evals[n].loss),
              std::bit_cast<uint64_t>(base.evals[n].loss));
  }
  EXPECT_EQ(run.finish.weights_hash, base.finish.weights_hash);
}

void ExpectMeasuredAsPlanned(const JobSpec& spec, const JobRun& run) {
  const PlannedJob planned = PlanTestJob(spec, MakeTestDevice(spec)->backend());
  const RankPlan& plan = planned.plan.ranks[0];
  const CopiedBytes copied = CopiesOf(planned.programs.training);
  EXPECT_TRUE(run.differences.empty());
  for (const StepReport& step : run.steps) {
    EXPECT_EQ(step.memory, plan.memory);
    EXPECT_EQ(step.saved_bytes, plan.saved_bytes);
    EXPECT_EQ(step.host_bytes, plan.host_bytes);
    EXPECT_EQ(step.disk_bytes, plan.disk_bytes);
    EXPECT_EQ(step.copied, copied);
  }
}

}  // namespace ebb
