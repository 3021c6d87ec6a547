// cases.md B3: memory over many steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "worker/runtime/testing/test_job.h"
#include "worker/runtime/testing/weights.h"

namespace ebb {
namespace {

// The case asks for 300 steps. EBB_FULL_COUNTS in the environment takes them
// all, a plain run a third.
constexpr int64_t kFullSteps = 300;
constexpr int64_t kSteps = kFullSteps / 3;
constexpr int64_t kSettledStep = 20;

int64_t NumSteps() {
  return std::getenv("EBB_FULL_COUNTS") != nullptr ? kFullSteps : kSteps;
}

// Counted bytes do not change at all after the settled step, and resident ones
// grow by less than 2 %.
void ExpectSteady(const JobRun& run) {
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  ASSERT_EQ(run.finish.last_step, NumSteps());
  const StepReport& settled = run.steps[kSettledStep - 1];
  int64_t largest = 0;
  for (const StepReport& step : run.steps) {
    EXPECT_EQ(step.memory, settled.memory);
    EXPECT_EQ(step.saved_bytes, settled.saved_bytes);
    if (step.step > kSettledStep) {
      largest = std::max(largest, step.resident_bytes);
    }
  }
  EXPECT_LT(static_cast<double>(largest),
            1.02 * static_cast<double>(settled.resident_bytes));
}

TEST(MemoryGrowth, PlainStepsDoNotGrow) {
  JobSpec spec = SmallJob();
  spec.steps = NumSteps();
  ExpectSteady(RunJob(spec, {.poison = false}));
}

TEST(MemoryGrowth, EvaluationsAndCheckpointsDoNotGrow) {
  const TestDirectory directory;
  JobSpec spec = SmallJob();
  spec.steps = NumSteps();
  spec.memory.policy = Policy::kFull;
  spec.eval = {.every = 10, .batches = 1, .micro = 1, .seq_len = 17};
  spec.checkpoint.every = 50;
  // This process is so small that what the first checkpoint leaves with the
  // allocator, a quarter of a megabyte once, would be more than 2 % of it: so
  // it is written before the settled step, like the first evaluation.
  const JobRun run =
      RunJob(spec, {.poison = false,
                    .validation_sequences = 8,
                    .checkpoint_directory = directory.path(),
                    .orders = {{kSettledStep / 2, TrainerOrder::kCheckpoint}}});
  ExpectSteady(run);
  EXPECT_EQ(run.evals.size(), static_cast<size_t>(spec.steps / 10));
  EXPECT_EQ(run.checkpoints.size(), static_cast<size_t>(1 + spec.steps / 50));
}

}  // namespace
}  // namespace ebb
