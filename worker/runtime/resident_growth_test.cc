// Predicted memory is real memory: what a job adds to the resident memory of
// its process is its arenas and the backend's `runtime`, within 2 %, from
// creation to the last step (cases.md B1 and B2, one rank).
//
// Every job runs in a child of its own, forked before this process has threads.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "worker/runtime/resident_memory.h"
#include "worker/runtime/testing/test_job.h"

namespace ebb {
namespace {

struct Growth {
  int64_t predicted = 0;     // arenas, those in host memory too, and runtime
  int64_t at_start = 0;      // when the arenas are populated
  int64_t at_last_step = 0;  // after it
  int64_t largest = 0;
  int64_t num_steps = 0;
};

JobSpec Job(Policy policy, DType precision, AttentionKind attention) {
  JobSpec spec = SmallJob();
  spec.precision = precision;
  spec.model.layers = 8;
  spec.model.hidden = 512;
  spec.model.heads = spec.model.kv_heads = 8;
  spec.model.ffn = 2048;
  spec.model.seq_len = 512;
  spec.model.attention = attention;
  spec.global_batch = 4;
  spec.micro_batch = 4;
  spec.steps = 3;
  spec.memory.policy = policy;
  return spec;
}

Growth Measure(const JobSpec& spec) {
  const int64_t before = *ResidentBytes();
  const JobRun run = RunJob(spec, {.poison = false});
  Growth growth;
  growth.num_steps = static_cast<int64_t>(run.steps.size());
  if (run.steps.empty()) return growth;
  growth.predicted = run.steps[0].memory.Sum() + run.steps[0].host_bytes;
  growth.at_start = run.resident_at_start - before;
  growth.at_last_step = run.steps.back().resident_bytes - before;
  growth.largest = growth.at_start;
  for (const StepReport& step : run.steps) {
    growth.largest = std::max(growth.largest, step.resident_bytes - before);
  }
  return growth;
}

Growth MeasureInChild(const JobSpec& spec) {
  Growth growth;
  int ends[2];
  if (pipe(ends) != 0) return growth;
  const pid_t child = fork();
  if (child == 0) {
    const Growth measured = Measure(spec);
    const ssize_t written = write(ends[1], &measured, sizeof(measured));
    _exit(written == sizeof(measured) ? 0 : 1);
  }
  close(ends[1]);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read(ends[0], &growth, sizeof(growth)),
            static_cast<ssize_t>(sizeof(growth)));
  close(ends[0]);
  return growth;
}

void ExpectPredicted(const JobSpec& spec) {
  const Growth growth = MeasureInChild(spec);
  ASSERT_EQ(growth.num_steps, 3);
  const double predicted = static_cast<double>(growth.predicted);
  std::printf("predicted %.2f MB, at start %.2f, at the last step %.2f\n",
              predicted / 1e6, static_cast<double>(growth.at_start) / 1e6,
              static_cast<double>(growth.at_last_step) / 1e6);
  EXPECT_NEAR(static_cast<double>(growth.at_last_step) / predicted, 1, 0.02)
      << "predicted " << growth.predicted << " grew by " << growth.at_last_step;
  EXPECT_LE(static_cast<double>(growth.largest), 1.02 * predicted)
      << "at start " << growth.at_start;
}

void ExpectPredicted(Policy policy, DType precision,
                     AttentionKind attention = AttentionKind::kFused) {
  ExpectPredicted(Job(policy, precision, attention));
}

TEST(ResidentGrowth, IsThePredictedMemoryUnderNone) {
  ExpectPredicted(Policy::kNone, DType::kF32);
}

TEST(ResidentGrowth, IsThePredictedMemoryUnderFull) {
  ExpectPredicted(Policy::kFull, DType::kF32);
}

TEST(ResidentGrowth, IsThePredictedMemoryUnderSelective) {
  ExpectPredicted(Policy::kSelective, DType::kF32, AttentionKind::kUnfused);
}

TEST(ResidentGrowth, IsThePredictedMemoryInBf16) {
  ExpectPredicted(Policy::kNone, DType::kBf16);
}

TEST(ResidentGrowth, IsThePredictedMemoryWithStateInHostMemory) {
  JobSpec spec = Job(Policy::kFull, DType::kBf16, AttentionKind::kFused);
  spec.memory.offload_optimizer = Offload::kHost;
  spec.memory.offload_parameters = Offload::kHost;
  ExpectPredicted(spec);
}

TEST(ResidentGrowth, IsThePredictedMemoryWithTheOptimizerOnDisk) {
  JobSpec spec = Job(Policy::kFull, DType::kF32, AttentionKind::kFused);
  spec.memory.offload_optimizer = Offload::kDisk;
  ExpectPredicted(spec);
}

}  // namespace
}  // namespace ebb
