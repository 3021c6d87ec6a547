// Training with encoded values: close to exact and not exact, the same bits
// whenever it is run, and what encoding loses as it is reported. Everything
// runs in poison mode, so that a read of a value after it was encoded shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/runtime/testing/test_job.h"
#include "worker/runtime/testing/weights.h"

namespace ebb {
namespace {

// Sizes that no vector divides.
JobSpec Job(bool llama, DType precision) {
  JobSpec spec = llama ? SmallLlamaJob() : SmallJob();
  spec.precision = precision;
  spec.model.layers = 3;
  spec.model.dropout = 0.1;
  spec.model.seq_len = 31;
  spec.eval.seq_len = 31;
  if (!llama) {
    spec.model.hidden = 60;
    spec.model.ffn = 197;
  }
  spec.global_batch = 4;
  spec.steps = 3;
  return spec;
}

JobSpec Encoded(JobSpec spec, DType format,
                std::vector<std::string> values = {"L*"}) {
  spec.memory.encode = {std::move(values), format};
  return spec;
}

// Half a unit of the last bit, relative to the number: of e4m3's three bits of
// mantissa and of bf16's seven. What is below a row's smallest normal number
// (2^-14 of its largest and less) adds next to nothing.
double Bound(DType format) {
  return format == DType::kBf16 ? 1.0 / 256 : 1.0 / 16;
}

struct Variant {
  const char* name;
  bool llama;
  DType precision;
  DType format;
};

class EncodeBits : public testing::TestWithParam<Variant> {
 protected:
  static JobSpec Exact() { return Job(GetParam().llama, GetParam().precision); }
};

TEST_P(EncodeBits, RunsUnderEveryPolicyAsPlannedAndTwiceTheSame) {
  const JobRun exact = RunJob(Exact());
  ASSERT_TRUE(exact.finish.status.ok()) << exact.finish.status;
  for (const Offload offload : {Offload::kNone, Offload::kHost}) {
    for (const Policy policy :
         {Policy::kNone, Policy::kSelective, Policy::kCheap, Policy::kFull,
          Policy::kSqrt, Policy::kCustom}) {
      SCOPED_TRACE(absl::StrCat(PolicyName(policy), " offload ",
                                static_cast<int>(offload)));
      JobSpec spec = Encoded(Exact(), GetParam().format);
      spec.memory.policy = policy;
      spec.memory.offload = offload;
      if (policy == Policy::kCustom) spec.memory.recompute = {"L1.mlp.*"};
      const JobRun run = RunJob(spec);
      ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
      ExpectMeasuredAsPlanned(spec, run);
      // Forward is exact, backward is not.
      EXPECT_EQ(run.steps[0].loss, exact.steps[0].loss);
      EXPECT_NE(run.steps[0].gradient_norm, exact.steps[0].gradient_norm);
      EXPECT_NE(run.finish.weights_hash, exact.finish.weights_hash);
      EXPECT_EQ(RunJob(spec).finish.weights_hash, run.finish.weights_hash);
      ASSERT_FALSE(run.steps[0].encode_errors.empty());
      for (const EncodeError& error : run.steps[0].encode_errors) {
        EXPECT_LE(error.relative_error, Bound(GetParam().format))
            << error.value;
        EXPECT_TRUE(std::isfinite(error.largest_error)) << error.value;
      }
    }
  }
}

// Offloading moves codes, and a switch changes places: neither changes a bit.
TEST_P(EncodeBits, SameWithOffload) {
  JobSpec spec = Encoded(Exact(), GetParam().format);
  const JobRun base = RunJob(spec);
  for (const Offload offload : {Offload::kHost, Offload::kDisk}) {
    SCOPED_TRACE(static_cast<int>(offload));
    spec.memory.offload = offload;
    const JobRun run = RunJob(
        spec, {.offload = {.check = true, .longest_delay_microseconds = 200}});
    ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
    EXPECT_EQ(run.finish.weights_hash, base.finish.weights_hash);
    EXPECT_GT(run.steps[0].host_bytes + run.steps[0].disk_bytes, 0);
    ASSERT_EQ(run.steps[0].encode_errors.size(),
              base.steps[0].encode_errors.size());
    for (size_t i = 0; i < run.steps[0].encode_errors.size(); ++i) {
      EXPECT_EQ(run.steps[0].encode_errors[i].relative_error,
                base.steps[0].encode_errors[i].relative_error);
    }
  }
}

constexpr Variant kVariants[] = {
    {"Bf16", false, DType::kF32, DType::kBf16},
    {"Fp8", false, DType::kF32, DType::kF8E4M3},
    {"Fp8OfBf16", false, DType::kBf16, DType::kF8E4M3},
    {"LlamaFp8", true, DType::kF32, DType::kF8E4M3},
};
INSTANTIATE_TEST_SUITE_P(Variants, EncodeBits, testing::ValuesIn(kVariants),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

TEST(EncodeRun, ResumedRunEqualsAnUnbrokenOne) {
  const TestDirectory directory;
  JobSpec spec = Encoded(Job(false, DType::kF32), DType::kF8E4M3);
  spec.steps = 6;
  spec.checkpoint.every = 2;
  const JobRun unbroken =
      RunJob(spec, {.checkpoint_directory = directory.path()});
  ASSERT_TRUE(unbroken.finish.status.ok()) << unbroken.finish.status;
  ASSERT_EQ(unbroken.checkpoints.size(), 3u);
  const JobRun resumed =
      RunJob(spec, {.resume_from = absl::StrCat(directory.path(), "/step-4")});
  ASSERT_TRUE(resumed.finish.status.ok()) << resumed.finish.status;
  EXPECT_EQ(resumed.steps.size(), 2u);
  EXPECT_EQ(resumed.finish.weights_hash, unbroken.finish.weights_hash);
}

// Fifty steps of a model that learns: the exact run's loss falls by more than a
// nat, and the encoded run's stays beside it. The tolerance is a part of that
// fall: 0.1 % of it for bf16, whose errors of up to 0.4 % a value average out,
// and 1 % for fp8_e4m3, with sixteen times the error.
TEST(EncodeRun, LossStaysBesideTheExactRuns) {
  JobSpec spec = Job(false, DType::kF32);
  spec.steps = 50;
  spec.global_batch = 8;
  spec.model.dropout = 0;
  const JobRun exact = RunJob(spec);
  const double fall = exact.steps[0].loss - exact.steps[49].loss;
  ASSERT_GT(fall, 1);
  for (const auto& [format, share] :
       {std::pair{DType::kBf16, 1e-3}, {DType::kF8E4M3, 1e-2}}) {
    const JobRun run = RunJob(Encoded(spec, format, {"L*"}));
    ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
    EXPECT_NEAR(run.steps[49].loss, exact.steps[49].loss, share * fall);
    EXPECT_NE(run.steps[49].loss, exact.steps[49].loss);
  }
}

// First-step gradients of all parameters, flat.
TensorMap Gradients(JobSpec spec) {
  const TestDirectory directory;
  spec.steps = 1;
  spec.optimizer.clip = 0;
  spec.checkpoint.every = 1;
  const JobRun run = RunJob(spec, {.checkpoint_directory = directory.path()});
  EXPECT_TRUE(run.finish.status.ok()) << run.finish.status;
  return ReadTensors(directory.path() + "/step-1",
                     CheckpointRole::kFirstMoment);
}

// Each tensor's gradient, by the root of its squares: the relative errors of
// the values that it is made from, which are independent, and those of the
// gradient that arrives. Twice the bound of one value leaves room for both. All
// outputs of ops are encoded; statistics, which by "L*" are too, weigh more: an
// error of attention's log-sum-exp becomes one of all its probabilities.
TEST(EncodeRun, GradientsStayCloseToExact) {
  const JobSpec spec = Job(false, DType::kF32);
  const TensorMap exact = Gradients(spec);
  for (const DType format : {DType::kBf16, DType::kF8E4M3}) {
    const TensorMap encoded = Gradients(Encoded(
        spec, format, {"linear", "attention", "layer_norm", "gelu", "add"}));
    double largest = 0;
    for (const auto& [name, values] : exact) {
      const std::vector<float>& others = encoded.at(name);
      double squared_error = 0, squares = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        squared_error += std::pow(double{values[i]} - others[i], 2);
        squares += std::pow(double{values[i]}, 2);
      }
      const double error = std::sqrt(squared_error / squares);
      EXPECT_LT(error, 2 * Bound(format)) << name;
      largest = std::max(largest, error);
    }
    EXPECT_GT(largest, Bound(format) / 100);
  }
}

// A live switch turns encoding on and off between two steps.
TEST(EncodeRun, SwitchesOnAndOffWhileTheJobTrains) {
  JobSpec spec = Job(false, DType::kF32);
  spec.steps = 8;
  JobSpec encoded = Encoded(spec, DType::kF8E4M3);
  encoded.memory.policy = Policy::kCheap;
  const auto order = [](int64_t number, const JobSpec& to, int64_t at_step) {
    PlanSwitch wanted;
    wanted.number = number;
    wanted.plan = PlanTestJob(to, MakeTestDevice(to)->backend()).plan;
    wanted.at_step = at_step;
    return wanted;
  };
  const JobRun exact = RunJob(spec);
  const JobRun run = RunJob(
      spec, {.switches = {{2, order(1, encoded, 4)}, {4, order(2, spec, 6)}}});
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  ASSERT_EQ(run.changes.size(), 2u);
  for (const PlanChange& change : run.changes) {
    EXPECT_TRUE(change.status.ok()) << change.status;
  }
  for (const StepReport& step : run.steps) {
    const bool is_encoded = step.step == 4 || step.step == 5;
    EXPECT_EQ(step.encode_errors.empty(), !is_encoded) << step.step;
    const StepReport& other = exact.steps[step.step - 1];
    EXPECT_EQ(step.gradient_norm == other.gradient_norm, step.step < 4);
    EXPECT_EQ(step.loss == other.loss, step.step <= 4);
  }
}

TEST(EncodeRun, ReportsNothingWhereNothingIsEncoded) {
  JobSpec spec = Job(false, DType::kF32);
  EXPECT_TRUE(RunJob(spec).steps[0].encode_errors.empty());
  spec = Encoded(spec, DType::kBf16, {"gelu"});
  const JobRun run = RunJob(spec);
  ASSERT_EQ(run.steps[0].encode_errors.size(), 1u);
  EXPECT_EQ(run.steps[0].encode_errors[0].value, "L*.mlp.act.y");
  EXPECT_GT(run.steps[0].encode_errors[0].relative_error, 1e-4);
  EXPECT_GT(run.steps[0].encode_errors[0].largest_error, 1e-6);
}

}  // namespace
}  // namespace ebb
