// What a profile measures is what plans ask for.
#include "worker/profiling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/program/cost_profile.h"
#include "worker/runtime/testing/test_job.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

bool Never() { return false; }

// Ops of the program that the profile has no time of.
std::vector<std::string> Missing(const JobSpec& spec,
                                 const std::map<std::string, double>& times) {
  const Backend backend = MakeTestDevice(spec)->backend();
  const PlannedJob job = PlanTestJob(spec, backend);
  std::vector<std::string> missing;
  ForEachCompute(
      job.programs.training, [&](const Block&, const Instruction& instruction) {
        const InstructionTypes call(instruction);
        const std::string key =
            OpKey(instruction.op, instruction.attrs, call.types, call.bound);
        if (times.count(key) == 0) missing.push_back(key);
      });
  return missing;
}

// Few layers and microbatches tell the times of all, recompute included.
TEST(Profiling, MeasuresEveryOpOfTheJob) {
  for (JobSpec spec : {SmallJob(), SmallLlamaJob()}) {
    spec.model.layers = 6;
    spec.model.dropout = 0.1;
    auto times = ProfileJob(spec, testing::TempDir(), Never);
    ASSERT_TRUE(times.ok()) << times.status();
    for (const auto& [key, seconds] : *times) EXPECT_GT(seconds, 0) << key;
    for (const std::string place : {"host", "disk"}) {
      EXPECT_EQ(times->count(CopyKey(place)), 1u) << place;
      EXPECT_EQ(times->count(CopyLossKey(place)), 1u) << place;
    }
    for (const Policy policy : {Policy::kNone, Policy::kFull, Policy::kCheap}) {
      spec.memory.policy = policy;
      EXPECT_THAT(Missing(spec, *times), ::testing::IsEmpty());
    }
    // Another micro batch has other ops.
    spec.micro_batch = 1;
    EXPECT_FALSE(Missing(spec, *times).empty());
  }
}

// Ops that encode are timed like others, and what they lose is kept beside: in
// a profile that of random tokens, in a job its own.
TEST(Profiling, MeasuresWhatEncodingLoses) {
  JobSpec spec = SmallJob();
  spec.memory.encode = {{"L3.mlp.act.y", "L*.qkv"}, DType::kF8E4M3};
  CostProfile profile;
  const TensorType qkv(DType::kF32, 64, 192);
  const auto find = [&profile](const TensorType& type, DType format) {
    return FindEncodeError(profile, "L*.qkv.y", type, format);
  };
  EXPECT_FALSE(find(qkv, DType::kF8E4M3).has_value());
  auto times = ProfileJob(spec, testing::TempDir(), Never);
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_THAT(Missing(spec, *times), ::testing::IsEmpty());
  profile.measured = *times;
  auto error = find(qkv, DType::kF8E4M3);
  ASSERT_TRUE(error.has_value());
  EXPECT_FALSE(error->is_of_a_job);
  EXPECT_GT(error->relative_error, 0.01);
  EXPECT_LT(error->relative_error, EncodeErrorBound(DType::kF8E4M3));
  EXPECT_GT(error->largest_error, 0);
  EXPECT_FALSE(find(qkv, DType::kBf16).has_value());
  EXPECT_FALSE(find({DType::kF32, 32, 192}, DType::kF8E4M3).has_value());

  const JobRun run = RunJob(spec);
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  EXPECT_THAT(Missing(spec, run.op_seconds), ::testing::IsEmpty());
  profile.measured.insert(run.op_seconds.begin(), run.op_seconds.end());
  error = find(qkv, DType::kF8E4M3);
  ASSERT_TRUE(error.has_value());
  EXPECT_TRUE(error->is_of_a_job);
  double in_step_4 = 0;
  for (const EncodeError& own : run.steps[3].encode_errors) {
    if (own.value == "L*.qkv.y") in_step_4 = own.relative_error;
  }
  EXPECT_EQ(error->relative_error, in_step_4);
}

// A trainer says what ops took in its first steps: the same ops, and together
// not longer than the steps.
TEST(Profiling, TrainerReportsTimesOfItsOps) {
  JobSpec spec = SmallJob();
  spec.memory.policy = Policy::kFull;
  const JobRun run = RunJob(spec);
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  EXPECT_THAT(Missing(spec, run.op_seconds), ::testing::IsEmpty());
  EXPECT_EQ(run.op_seconds.count(CopyKey(kHostPlace)), 0u);
  for (const Offload place : {Offload::kHost, Offload::kDisk}) {
    JobSpec offloads = spec;
    offloads.memory.offload = place;
    const JobRun copying = RunJob(offloads);
    const bool to_host = place == Offload::kHost;
    EXPECT_EQ(copying.op_seconds.count(CopyKey(kHostPlace)), to_host);
    EXPECT_EQ(copying.op_seconds.count(CopyKey(DiskPlace(""))), !to_host);
  }
  spec.steps = 3;  // too few: the first warms up, three are timed
  EXPECT_TRUE(RunJob(spec).op_seconds.empty());
}

TEST(Profiling, MeasuredTimesReplaceTheRoofline) {
  const JobSpec spec = SmallJob();
  const Backend backend = MakeTestDevice(spec)->backend();
  const PlannedJob job = PlanTestJob(spec, backend);
  CostProfile profile = RooflineProfile(backend);
  const double before = SecondsOf(job.programs.training, profile).total;
  int64_t num_runs = 0;
  ForEachCompute(job.programs.training,
                 [&](const Block&, const Instruction& instruction) {
                   const InstructionTypes call(instruction);
                   profile.measured[OpKey(instruction.op, instruction.attrs,
                                          call.types, call.bound)] = 2;
                   ++num_runs;
                 });
  EXPECT_LT(before, 1);
  EXPECT_DOUBLE_EQ(SecondsOf(job.programs.training, profile).total,
                   2.0 * static_cast<double>(num_runs));
}

TEST(Profiling, SaysWhatIsWrong) {
  EXPECT_EQ(ProfileJob(SmallJob(), "/tmp", [] { return true; }).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_FALSE(ProfileJobText("nonsense", "/tmp", Never).ok());
  JobSpec huge = SmallJob();
  huge.model.hidden = 1 << 16;
  huge.model.ffn = 1 << 18;
  const absl::Status status = ProfileJob(huge, "/tmp", Never).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("one layer"));
}

}  // namespace
}  // namespace ebb
