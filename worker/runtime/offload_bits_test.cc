// Contract 1 with offload: what goes to host memory and comes back changes no
// bit, under any policy, however late the copies are. Everything runs in poison
// mode, so that a place that is used too early or too late shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/kernel_table.h"
#include "worker/runtime/testing/heap_device.h"
#include "worker/runtime/testing/test_job.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

struct Variant {
  const char* name;
  bool llama;
  AttentionKind attention;
  DType precision = DType::kF32;
};

constexpr Variant kVariants[] = {
    {"Fused", false, AttentionKind::kFused},
    {"UnfusedBf16", false, AttentionKind::kUnfused, DType::kBf16},
    {"LlamaFusedBf16", true, AttentionKind::kFused, DType::kBf16},
    {"LlamaUnfused", true, AttentionKind::kUnfused},
};

// Five layers, three microbatches, dropout.
JobSpec Job(const Variant& variant) {
  JobSpec spec = variant.llama ? SmallLlamaJob() : SmallJob();
  spec.precision = variant.precision;
  spec.model.layers = 5;
  spec.model.attention = variant.attention;
  spec.model.dropout = 0.1;
  spec.global_batch = 6;
  spec.micro_batch = 2;
  spec.steps = 3;
  return spec;
}

JobSpec Offloaded(JobSpec spec, Policy policy = Policy::kNone, int group = 1,
                  Offload offload = Offload::kHost) {
  spec.memory.policy = policy;
  spec.memory.group = group;
  spec.memory.offload = offload;
  return spec;
}

class OffloadBits : public testing::TestWithParam<Variant> {
 protected:
  // Nothing offloaded, nothing computed again.
  static const JobRun& Base(const Variant& variant) {
    static std::map<std::string, JobRun> cache;
    JobRun& run = cache[variant.name];
    if (run.steps.empty()) run = RunJob(Job(variant));
    return run;
  }
};

TEST_P(OffloadBits, SameUnderEveryPolicy) {
  const JobRun& base = Base(GetParam());
  for (const Policy policy : {Policy::kNone, Policy::kSelective, Policy::kCheap,
                              Policy::kSqrt, Policy::kCustom}) {
    SCOPED_TRACE(PolicyName(policy));
    JobSpec spec = Offloaded(Job(GetParam()), policy);
    // Other decisions in other layers.
    if (policy == Policy::kCustom) {
      spec.memory.recompute = {"L1.mlp.*", "L3.attention_norm.*", "L*.qkv"};
    }
    const JobRun run = RunJob(spec);
    ExpectSameBits(run, base);
    ExpectMeasuredAsPlanned(spec, run);
    EXPECT_GT(run.steps[0].host_bytes, 0);
    EXPECT_GT(run.steps[0].copied.to_host, 0);
    EXPECT_EQ(base.steps[0].copied, CopiedBytes());
    EXPECT_LT(run.steps[0].saved_bytes, base.steps[0].saved_bytes);
  }
}

// Groups of several layers, the last one shorter, with their inputs offloaded.
TEST_P(OffloadBits, SameWithGroupsOfLayers) {
  for (const int group : {1, 2, 3, 5}) {
    SCOPED_TRACE(group);
    const JobSpec spec = Offloaded(Job(GetParam()), Policy::kFull, group);
    const JobRun run = RunJob(spec);
    ExpectSameBits(run, Base(GetParam()));
    ExpectMeasuredAsPlanned(spec, run);
    EXPECT_EQ(run.steps[0].host_bytes > 0, group < 5);
  }
}

TEST_P(OffloadBits, SameHoweverLateTheCopies) {
  for (const Policy policy : {Policy::kNone, Policy::kFull}) {
    for (const bool check : {false, true}) {
      SCOPED_TRACE(absl::StrCat(PolicyName(policy), " check ", check));
      const JobRun run = RunJob(
          Offloaded(Job(GetParam()), policy),
          {.offload = {.check = check, .longest_delay_microseconds = 300}});
      ExpectSameBits(run, Base(GetParam()));
    }
  }
}

TEST_P(OffloadBits, SameFromDisk) {
  for (const Policy policy : {Policy::kNone, Policy::kCheap, Policy::kFull}) {
    SCOPED_TRACE(PolicyName(policy));
    const JobSpec spec = Offloaded(Job(GetParam()), policy, 1, Offload::kDisk);
    const JobRun run = RunJob(
        spec, {.offload = {.check = true, .longest_delay_microseconds = 100}});
    ExpectSameBits(run, Base(GetParam()));
    ExpectMeasuredAsPlanned(spec, run);
    EXPECT_GT(run.steps[0].disk_bytes, 0);
    EXPECT_EQ(run.steps[0].host_bytes, 0);
    EXPECT_GT(run.steps[0].copied.to_disk, 0);
    EXPECT_EQ(run.steps[0].copied.to_host, 0);
  }
}

TEST_P(OffloadBits, SpoiledCopyChangesTheLossAndIsFoundByChecksum) {
  const JobSpec spec = Offloaded(Job(GetParam()));
  // A copy of the first microbatch of the first step, another of a later step.
  for (const int64_t copy : {3, 200}) {
    SCOPED_TRACE(copy);
    const JobRun spoiled = RunJob(spec, {.offload = {.spoiled_copy = copy}});
    ASSERT_TRUE(spoiled.finish.status.ok()) << spoiled.finish.status;
    EXPECT_NE(spoiled.steps.back().loss, Base(GetParam()).steps.back().loss);
    EXPECT_NE(spoiled.finish.weights_hash,
              Base(GetParam()).finish.weights_hash);

    const JobRun found =
        RunJob(spec, {.offload = {.check = true, .spoiled_copy = copy}});
    EXPECT_EQ(found.finish.status.code(), absl::StatusCode::kDataLoss);
    const std::string message(found.finish.status.message());
    EXPECT_THAT(message, HasSubstr("offloaded value L"));
    EXPECT_THAT(message, HasSubstr("block backward_layer"));
    EXPECT_THAT(message,
                HasSubstr(absl::StrCat("step ", found.finish.last_step + 1)));
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, OffloadBits, ::testing::ValuesIn(kVariants),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

// One layer: nothing is between its forward and its backward.
TEST(OffloadJob, OfOneLayerKeepsAll) {
  JobSpec spec = Job(kVariants[0]);
  spec.model.layers = 1;
  const JobRun base = RunJob(spec);
  const JobRun run = RunJob(Offloaded(spec));
  ExpectSameBits(run, base);
  EXPECT_EQ(run.steps[0].host_bytes, 0);
}

TEST(OffloadJob, OfTwoLayersHasNoBlockThatRepeats) {
  JobSpec spec = Job(kVariants[0]);
  spec.model.layers = 2;
  const JobRun base = RunJob(spec);
  const JobRun run = RunJob(Offloaded(spec));
  ExpectSameBits(run, base);
  EXPECT_GT(run.steps[0].host_bytes, 0);
}

// Shapes whose values are no multiple of 64 bytes, nor of a page.
TEST(OffloadJob, OfOddSizesIsTheSame) {
  for (const DType precision : {DType::kF32, DType::kBf16}) {
    JobSpec spec = Job(kVariants[0]);
    spec.precision = precision;
    spec.model.hidden = 66;
    spec.model.heads = spec.model.kv_heads = 3;
    spec.model.ffn = 130;
    spec.model.seq_len = 31;
    spec.eval.seq_len = 31;
    spec.micro_batch = 1;
    spec.global_batch = 3;
    const JobRun base = RunJob(spec);
    ASSERT_TRUE(base.finish.status.ok()) << base.finish.status;
    for (const Policy policy : {Policy::kNone, Policy::kFull}) {
      for (const Offload offload : {Offload::kHost, Offload::kDisk}) {
        ExpectSameBits(RunJob(Offloaded(spec, policy, 1, offload),
                              {.offload = {.check = true}}),
                       base);
      }
    }
  }
}

// Host memory is what the values take, and stays so.
TEST(OffloadJob, TakesHostMemoryOnce) {
  JobSpec spec = Offloaded(Job(kVariants[0]));
  spec.model.hidden = 66;
  spec.model.heads = spec.model.kv_heads = 3;
  spec.micro_batch = 1;
  spec.global_batch = 2;
  spec.steps = 50;
  const PlannedJob planned = PlanTestJob(spec, MakeTestDevice(spec)->backend());
  int64_t exact_bytes = 0;
  for (const Decision& decision : planned.plan.decisions) {
    if (!IsOffload(decision.decision)) continue;
    for (const Value& value : planned.programs.graph.values) {
      if (value.name != decision.value) continue;
      exact_bytes +=
          value.type.bytes() * (decision.last_layer - decision.first_layer + 1);
    }
  }
  const JobRun run = RunJob(spec);
  ASSERT_EQ(run.steps.size(), 50u) << run.finish.status;
  for (const StepReport& step : run.steps) {
    EXPECT_EQ(step.host_bytes, planned.plan.ranks[0].host_bytes);
    EXPECT_GE(step.host_bytes, exact_bytes);
    EXPECT_LE(static_cast<double>(step.host_bytes),
              1.1 * static_cast<double>(exact_bytes));
    // Each of two microbatches takes every byte out and back.
    EXPECT_EQ(step.copied, (CopiedBytes{.to_host = 2 * exact_bytes,
                                        .from_host = 2 * exact_bytes}));
  }
  EXPECT_LT(run.steps[49].resident_bytes - run.steps[4].resident_bytes,
            int64_t{1} << 20);
}

TEST(OffloadJob, SpoiledFileIsFoundByChecksum) {
  const JobSpec spec =
      Offloaded(Job(kVariants[0]), Policy::kNone, 1, Offload::kDisk);
  const JobRun run =
      RunJob(spec, {.offload = {.check = true, .spoiled_copy = 5}});
  EXPECT_EQ(run.finish.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(run.finish.status.message()),
              HasSubstr("came back from disk"));
}

// A fresh one.
std::string MakeDirectory() {
  const std::string directory =
      absl::StrCat(testing::TempDir(), "/offload_bits_test-", getpid());
  std::filesystem::create_directories(directory);
  return directory;
}

// The file has no name and needs none.
TEST(OffloadJob, GoesOnWhereItsDirectoryVanishes) {
  class Remover final : public RecordingObserver {
   public:
    explicit Remover(std::string directory)
        : directory_(std::move(directory)) {}
    void OnStep(const StepReport& report) override {
      RecordingObserver::OnStep(report);
      if (report.step == 2) std::filesystem::remove_all(directory_);
    }

   private:
    const std::string directory_;
  };
  const std::string directory = MakeDirectory();
  const JobSpec spec = Job(kVariants[0]);
  auto trainer = Trainer::Create(
      MakeSetup(Offloaded(spec, Policy::kNone, 1, Offload::kDisk),
                {.offload_directory = directory}));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  Remover observer(directory);
  observer.run.finish = (*trainer)->Run(observer);
  ExpectSameBits(observer.run, RunJob(spec));
  EXPECT_FALSE(std::filesystem::exists(directory));
}

TEST(OffloadJob, LeavesNothingOnDisk) {
  const std::string directory = MakeDirectory();
  const JobSpec spec =
      Offloaded(Job(kVariants[0]), Policy::kNone, 1, Offload::kDisk);
  const JobRun run = RunJob(spec, {.offload_directory = directory});
  EXPECT_TRUE(run.finish.status.ok()) << run.finish.status;
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  std::filesystem::remove_all(directory);
  // One that takes no file ends the job before it starts, by its name.
  const JobRun refused = RunJob(spec, {.offload_directory = directory});
  EXPECT_EQ(refused.finish.status.code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.finish.status.message()),
              HasSubstr(directory));
}

// Evaluation runs between steps on the same step arena.
TEST(OffloadJob, EvaluatesBetweenSteps) {
  JobSpec spec = Job(kVariants[0]);
  spec.eval.every = 1;
  spec.eval.batches = 1;
  const TestJobOptions options = {.validation_sequences = 6};
  const JobRun base = RunJob(spec, options);
  const JobRun run = RunJob(Offloaded(spec), options);
  ExpectSameBits(run, base);
  ASSERT_EQ(run.evals.size(), base.evals.size());
  for (size_t n = 0; n < run.evals.size(); ++n) {
    EXPECT_EQ(run.evals[n].loss, base.evals[n].loss);
  }
}

TEST(OffloadJob, StartIsRefusedWhereHostMemoryDoesNotFitBesideTheArenas) {
  const JobSpec spec = Offloaded(Job(kVariants[0]));
  TrainerSetup setup = MakeSetup(spec);
  setup.plan = PlanTestJob(spec, BuiltInCpuBackend()).plan;
  const RankPlan& plan = setup.plan.ranks[0];
  // Room for all but a byte of the host arena.
  setup.device = std::make_unique<HeapDevice>(
      CpuKernelTable(), plan.state_arena_bytes + plan.step_arena_bytes +
                            plan.host_bytes +
                            BuiltInCpuBackend().runtime_bytes - 1);
  const std::string host_bytes = absl::StrCat("host arena ", plan.host_bytes);
  const absl::Status status = Trainer::Create(std::move(setup)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(host_bytes));
}

}  // namespace
}  // namespace ebb
