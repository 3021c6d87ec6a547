// Jobs whose weights and activations are stored in bf16: losses follow fp32's,
// nothing is lost in updates and sums, and checkpoints hold fp32 masters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "worker/runtime/testing/test_job.h"
#include "worker/runtime/testing/weights.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

JobSpec Bf16Job() {
  JobSpec spec = SmallJob();
  spec.precision = DType::kBf16;
  return spec;
}

JobSpec InFp32(JobSpec spec) {
  spec.precision = DType::kF32;
  return spec;
}

struct Shape {
  const char* name;
  bool llama;
  AttentionKind attention;
};

class Losses : public ::testing::TestWithParam<Shape> {};

TEST_P(Losses, AreWithinAPercentOfFp32Over50Steps) {
  JobSpec spec = GetParam().llama ? SmallLlamaJob() : SmallJob();
  spec.precision = DType::kBf16;
  spec.model.attention = GetParam().attention;
  spec.model.dropout = 0.1;
  spec.memory.policy = Policy::kCheap;
  spec.steps = 50;
  const JobRun run = RunJob(spec);
  const JobRun fp32 = RunJob(InFp32(spec));
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  ASSERT_TRUE(fp32.finish.status.ok()) << fp32.finish.status;
  ASSERT_EQ(run.steps.size(), 50u);
  double largest = 0;
  for (size_t n = 0; n < run.steps.size(); ++n) {
    const double error = run.steps[n].loss / fp32.steps[n].loss - 1;
    EXPECT_LE(std::abs(error), 0.01) << "step " << n + 1;
    largest = std::max(largest, std::abs(error));
  }
  // It is another computation, and it learns.
  EXPECT_GT(largest, 0);
  EXPECT_LT(run.steps.back().loss, run.steps.front().loss - 0.5);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Losses,
    ::testing::Values(Shape{"Fused", false, AttentionKind::kFused},
                      Shape{"Unfused", false, AttentionKind::kUnfused},
                      Shape{"LlamaFused", true, AttentionKind::kFused},
                      Shape{"LlamaUnfused", true, AttentionKind::kUnfused}),
    [](const auto& info) { return std::string(info.param.name); });

// What is stored where, in bytes of the plan.
TEST(Bf16, HalvesWeightsAndActivationsAndKeepsMasters) {
  const JobSpec spec = Bf16Job();
  const Backend backend = MakeTestDevice(spec)->backend();
  const RankPlan bf16 = PlanTestJob(spec, backend).plan.ranks[0];
  const RankPlan fp32 = PlanTestJob(InFp32(spec), backend).plan.ranks[0];
  const auto bytes = [](const RankPlan& plan, MemoryClass memory_class) {
    return static_cast<double>(plan.memory[memory_class]);
  };
  // Sizes are rounded up to cache lines.
  EXPECT_NEAR(bytes(bf16, MemoryClass::kParameters) /
                  bytes(fp32, MemoryClass::kParameters),
              0.5, 0.01);
  // Master and two moments instead of two moments.
  EXPECT_EQ(bytes(bf16, MemoryClass::kOptimizer),
            1.5 * bytes(fp32, MemoryClass::kOptimizer));
  EXPECT_EQ(bytes(bf16, MemoryClass::kGradients),
            bytes(fp32, MemoryClass::kGradients));
  // Statistics of norms and attention stay fp32.
  EXPECT_NEAR(static_cast<double>(bf16.saved_bytes) / fp32.saved_bytes, 0.5,
              0.03);
}

// cases.md D4: a weight of 1.0 has its neighbours 1/256 below and 1/128 above;
// a hundred steps of 1e-4 are less than three of those.
TEST(Bf16, NormWeightsMoveAsInFp32) {
  const TestDirectory directory;
  JobSpec spec = Bf16Job();
  spec.steps = 100;
  spec.optimizer.lr = 1e-4;
  spec.checkpoint.every = 100;
  const auto weights = [&](const JobSpec& job, const char* name) {
    const std::string parent = directory.path() + "/" + name;
    const JobRun run = RunJob(job, {.checkpoint_directory = parent});
    EXPECT_TRUE(run.finish.status.ok()) << run.finish.status;
    return ReadTensors(parent + "/step-100", CheckpointRole::kParameter);
  };
  const TensorMap bf16 = weights(spec, "bf16");
  const TensorMap fp32 = weights(InFp32(spec), "fp32");
  int64_t count = 0, moved = 0, close = 0;
  double mean = 0, largest_error = 0;
  for (const auto& [name, values] : bf16) {
    if (name.find(".gain") == std::string::npos) continue;
    for (size_t i = 0; i < values.size(); ++i) {
      const double movement = values[i] - 1.0;
      const double expected = fp32.at(name)[i] - 1.0;
      const double error = std::abs(movement - expected);
      ++count;
      moved += movement != 0;
      close += error <= 0.2 * std::abs(expected);
      mean += std::abs(expected);
      largest_error = std::max(largest_error, error);
    }
  }
  ASSERT_EQ(count, 64 * 9);
  EXPECT_GT(moved, count * 9 / 10);
  // Some hardly move, with gradients of either sign: held to the mean.
  EXPECT_GE(close, count * 98 / 100);
  EXPECT_LE(largest_error, 0.2 * mean / static_cast<double>(count));
}

// cases.md D4: sums over microbatches lose nothing.
TEST(Bf16, ManyEqualMicrobatchesGiveTheNormOfOne) {
  class OneSequence final : public BatchSource {
   public:
    absl::Status Fill(int64_t, std::span<int32_t> tokens,
                      std::span<int32_t> targets) override {
      for (size_t n = 0; n < tokens.size(); ++n) {
        tokens[n] = static_cast<int32_t>(n % 32 * 7919 % 257);
        targets[n] = static_cast<int32_t>((n % 32 + 1) * 7919 % 257);
      }
      return absl::OkStatus();
    }
  };
  OneSequence source;
  const auto norm = [&](int num_microbatches) {
    JobSpec spec = Bf16Job();
    spec.micro_batch = 1;
    spec.global_batch = num_microbatches;
    spec.steps = 1;
    TrainerSetup setup = MakeSetup(spec);
    setup.train = &source;
    RecordingObserver observer;
    auto trainer = Trainer::Create(std::move(setup));
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    EXPECT_TRUE((*trainer)->Run(observer).status.ok());
    return observer.run.steps.at(0).gradient_norm;
  };
  EXPECT_NEAR(norm(64) / norm(1), 1, 1e-3);
}

// cases.md D2.
TEST(Bf16, FailsAfterManyStepsThatAreNotFinite) {
  const TestDirectory directory;
  JobSpec spec = Bf16Job();
  spec.steps = 200;
  spec.checkpoint.init_from = CraftWeights(
      spec, directory.path(), [](const std::string& name, auto& values) {
        if (name == "L1.mlp.fc.weight") values[3] = std::nanf("");
      });
  const JobRun run = RunJob(spec);
  EXPECT_EQ(run.finish.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(run.finish.last_step, kMostSkippedSteps);
  EXPECT_THAT(std::string(run.finish.status.message()),
              HasSubstr("not finite in 20 steps in a row"));
  for (const StepReport& step : run.steps) EXPECT_TRUE(step.skipped);
}

// A checkpoint holds all that a job continues from, bit for bit.
TEST(Bf16, ContinuesFromACheckpointAsIfNeverStopped) {
  const TestDirectory directory;
  JobSpec spec = Bf16Job();
  spec.model.dropout = 0.1;
  spec.checkpoint.every = 3;
  const JobRun whole = RunJob(spec, {.checkpoint_directory = directory.path()});
  ASSERT_TRUE(whole.finish.status.ok()) << whole.finish.status;
  spec.checkpoint.every = 0;
  const JobRun rest =
      RunJob(spec, {.resume_from = directory.path() + "/step-3"});
  ASSERT_TRUE(rest.finish.status.ok()) << rest.finish.status;
  ASSERT_EQ(rest.steps.size(), 3u);
  for (size_t n = 0; n < 3; ++n) {
    EXPECT_EQ(rest.steps[n].loss, whole.steps[n + 3].loss);
    EXPECT_EQ(rest.steps[n].gradient_norm, whole.steps[n + 3].gradient_norm);
  }
  EXPECT_EQ(rest.finish.weights_hash, whole.finish.weights_hash);
}

// Weights go from one precision to the other: the masters are what is stored.
TEST(Bf16, StartsFromFp32WeightsAndTheOtherWayRound) {
  const TestDirectory directory;
  JobSpec spec = Bf16Job();
  spec.checkpoint.every = 6;
  for (const DType from : {DType::kBf16, DType::kF32}) {
    SCOPED_TRACE(DTypeName(from));
    spec.precision = from;
    spec.checkpoint.init_from = "";
    const std::string parent = directory.path() + "/" + DTypeName(from);
    const JobRun first = RunJob(spec, {.checkpoint_directory = parent});
    ASSERT_TRUE(first.finish.status.ok()) << first.finish.status;

    JobSpec next = spec;
    next.precision = from == DType::kBf16 ? DType::kF32 : DType::kBf16;
    next.checkpoint.init_from = parent + "/step-6";
    // Before its first step the job has the other's masters.
    const JobRun start = RunJob(next, {.orders = {{0, TrainerOrder::kCancel}}});
    EXPECT_EQ(start.finish.weights_hash, first.finish.weights_hash);
    const JobRun run = RunJob(next);
    ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
    EXPECT_NEAR(run.steps[0].loss / first.steps.back().loss, 1, 0.05);
    EXPECT_LT(run.steps.back().loss, first.steps.front().loss);
  }
}

// Masters are not rounded: most are no bf16.
TEST(Bf16, CheckpointsHoldMasters) {
  const TestDirectory directory;
  JobSpec spec = Bf16Job();
  spec.checkpoint.every = 6;
  const JobRun run = RunJob(spec, {.checkpoint_directory = directory.path()});
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  const TensorMap weights =
      ReadTensors(directory.path() + "/step-6", CheckpointRole::kParameter);
  const std::vector<float>& values = weights.at("L1.qkv.weight");
  int64_t narrow = 0;
  for (const float value : values) {
    narrow += ToFloat(RoundToBf16(value)) == value;
  }
  EXPECT_LT(narrow, static_cast<int64_t>(values.size()) / 100);
}

}  // namespace
}  // namespace ebb
