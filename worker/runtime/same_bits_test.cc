// Contract 1: a recompute policy changes no bit of loss, gradient norm or
// weights; and the programs do differ. Everything runs in poison mode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/runtime/arena_memory.h"
#include "worker/runtime/executor.h"
#include "worker/runtime/model_state.h"
#include "worker/runtime/testing/test_job.h"

namespace ebb {
namespace {

struct Variant {
  const char* name;
  bool llama;
  AttentionKind attention;
  double dropout;
  DType precision = DType::kF32;
  Activation activation = Activation::kGelu;  // of those that are no Llama
};

constexpr Variant kVariants[] = {
    {"Fused", false, AttentionKind::kFused, 0.1},
    {"Unfused", false, AttentionKind::kUnfused, 0.1},
    {"FusedBf16", false, AttentionKind::kFused, 0.1, DType::kBf16},
    {"UnfusedBf16", false, AttentionKind::kUnfused, 0.1, DType::kBf16},
    {"ReluFused", false, AttentionKind::kFused, 0.1, DType::kF32,
     Activation::kRelu},
    {"ReluUnfusedBf16", false, AttentionKind::kUnfused, 0.1, DType::kBf16,
     Activation::kRelu},
    {"LlamaFused", true, AttentionKind::kFused, 0.1},
    {"LlamaUnfused", true, AttentionKind::kUnfused, 0.1},
    {"LlamaFusedNoDropout", true, AttentionKind::kFused, 0},
    {"LlamaUnfusedNoDropout", true, AttentionKind::kUnfused, 0},
    {"LlamaFusedBf16", true, AttentionKind::kFused, 0.1, DType::kBf16},
    {"LlamaUnfusedBf16", true, AttentionKind::kUnfused, 0.1, DType::kBf16},
};

// Five layers, three microbatches.
JobSpec Job(const Variant& variant) {
  JobSpec spec = variant.llama ? SmallLlamaJob() : SmallJob();
  spec.precision = variant.precision;
  spec.model.layers = 5;
  spec.model.attention = variant.attention;
  spec.model.dropout = variant.dropout;
  if (!variant.llama) spec.model.activation = variant.activation;
  spec.global_batch = 6;
  spec.micro_batch = 2;
  spec.steps = 4;
  return spec;
}

JobSpec WithPolicy(JobSpec spec, Policy policy, int group = 1) {
  spec.memory.policy = policy;
  spec.memory.group = group;
  return spec;
}

// All named policies and two custom ones.
std::map<std::string, JobSpec> JobsOf(const Variant& variant) {
  const JobSpec base = Job(variant);
  std::map<std::string, JobSpec> jobs = {
      {"none", WithPolicy(base, Policy::kNone)},
      {"selective", WithPolicy(base, Policy::kSelective)},
      {"cheap", WithPolicy(base, Policy::kCheap)},
      {"full 1", WithPolicy(base, Policy::kFull, 1)},
      {"full 2", WithPolicy(base, Policy::kFull, 2)},
      {"full 3", WithPolicy(base, Policy::kFull, 3)},
      {"full 5", WithPolicy(base, Policy::kFull, 5)},
      {"sqrt", WithPolicy(base, Policy::kSqrt)},
      {"custom op", WithPolicy(base, Policy::kCustom)},
      {"custom values", WithPolicy(base, Policy::kCustom)},
  };
  using Names = std::vector<std::string>;
  jobs["custom op"].memory.recompute =
      variant.llama ? Names{"swiglu", "rms_norm", "rope"}
      : variant.activation == Activation::kRelu ? Names{"relu", "layer_norm"}
                                                : Names{"gelu", "layer_norm"};
  // Other decisions in other layers.
  jobs["custom values"].memory.recompute = {"L1.mlp.*", "L3.attention_norm.*",
                                            "L*.qkv"};
  return jobs;
}

class SameBits : public ::testing::TestWithParam<Variant> {
 protected:
  static const std::map<std::string, JobRun>& Runs(const Variant& variant) {
    static std::map<std::string, std::map<std::string, JobRun>> cache;
    auto& runs = cache[variant.name];
    if (runs.empty()) {
      for (const auto& [name, spec] : JobsOf(variant)) {
        runs[name] = RunJob(spec);
      }
    }
    return runs;
  }
};

TEST_P(SameBits, UnderEveryPolicy) {
  const auto& runs = Runs(GetParam());
  const JobRun& base = runs.at("none");
  ASSERT_TRUE(base.finish.status.ok()) << base.finish.status;
  ASSERT_EQ(base.steps.size(), 4u);
  // The job does something: it starts at a uniform guess and learns.
  EXPECT_NEAR(base.steps[0].loss, 5.549, 0.2);
  EXPECT_NE(base.steps[3].loss, base.steps[0].loss);
  for (const auto& [name, run] : runs) {
    SCOPED_TRACE(name);
    ExpectSameBits(run, base);
  }
}

TEST_P(SameBits, WithoutPoisonToo) {
  JobSpec spec = JobsOf(GetParam()).at("full 2");
  ExpectSameBits(RunJob(spec, {.poison = false}), Runs(GetParam()).at("none"));
}

TEST_P(SameBits, DropoutIsInTheRunThatAsksForIt) {
  JobSpec spec = Job(GetParam());
  spec.model.dropout = 0;
  const JobRun without = RunJob(spec);
  const JobRun& with = Runs(GetParam()).at("none");
  if (GetParam().dropout == 0) {
    ExpectSameBits(without, with);
  } else {
    EXPECT_NE(without.steps[0].loss, with.steps[0].loss);
  }
}

TEST_P(SameBits, RecomputeFlopsAreThoseOfTheProgram) {
  for (const auto& [name, spec] : JobsOf(GetParam())) {
    SCOPED_TRACE(name);
    const ProgramAccount account =
        PlanTestJob(spec, MakeTestDevice(spec)->backend())
            .programs.training.account;
    for (const StepReport& step : Runs(GetParam()).at(name).steps) {
      EXPECT_EQ(step.recompute_flops, account.recompute_flops);
      EXPECT_EQ(step.model_flops, account.model_flops);
    }
  }
  const auto flops = [&](const char* name) {
    return Runs(GetParam()).at(name).steps[0].recompute_flops;
  };
  // Fused attention computes its scores twice under any policy.
  const double base = flops("none");
  EXPECT_GT(flops("cheap"), base);
  EXPECT_GT(flops("full 1"), flops("cheap"));
  EXPECT_GT(flops("sqrt"), base);
  EXPECT_GT(flops("custom op"), base);
  EXPECT_GT(flops("custom values"), base);
}

TEST_P(SameBits, ModelFlopsDoNotDependOnPolicy) {
  const auto& runs = Runs(GetParam());
  for (const auto& [name, run] : runs) {
    EXPECT_EQ(run.steps[0].model_flops, runs.at("none").steps[0].model_flops)
        << name;
  }
}

TEST_P(SameBits, SavedBytesFall) {
  const auto saved = [&](const char* name) {
    return Runs(GetParam()).at(name).steps[0].saved_bytes;
  };
  EXPECT_GT(saved("none"), saved("cheap"));
  EXPECT_GT(saved("cheap"), saved("full 1"));
  EXPECT_GT(saved("full 1"), saved("full 2"));
  EXPECT_GT(saved("full 1"), 0);
  if (GetParam().attention == AttentionKind::kUnfused) {
    EXPECT_GT(saved("none"), saved("selective"));
  } else {
    // With fused attention there is no core to drop.
    EXPECT_EQ(saved("none"), saved("selective"));
  }
}

TEST_P(SameBits, MeasuredMemoryIsThatOfThePlan) {
  for (const auto& [name, spec] : JobsOf(GetParam())) {
    SCOPED_TRACE(name);
    const Plan job_plan =
        PlanTestJob(spec, MakeTestDevice(spec)->backend()).plan;
    const RankPlan& plan = job_plan.ranks[0];
    const JobRun& run = Runs(GetParam()).at(name);
    EXPECT_TRUE(run.differences.empty());
    EXPECT_EQ(run.state_bytes, plan.state_arena_bytes);
    EXPECT_EQ(run.step_bytes, plan.step_arena_bytes);
    for (const StepReport& step : run.steps) {
      EXPECT_EQ(step.memory, plan.memory);
      EXPECT_EQ(step.memory.Sum(), plan.peak_bytes);
      EXPECT_EQ(step.saved_bytes, plan.saved_bytes);
    }
  }
}

// Runs the training program that is lowered for `backend` on the job's device.
std::vector<StepReport> RunProgram(const JobSpec& spec, const Backend& backend,
                                   bool* has_loops) {
  const std::unique_ptr<Device> device = MakeTestDevice(spec);
  const JobPrograms programs = PlanTestJob(spec, backend).programs;
  const Program& program = programs.training;
  *has_loops = false;
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.instructions) {
      *has_loops = *has_loops || instruction.continues;
    }
  }
  const auto state = ArenaMemory::Allocate(*device, program.state_bytes);
  const auto step = ArenaMemory::Allocate(*device, program.step_bytes);
  EXPECT_TRUE(state.ok() && step.ok());
  const ArenaView arenas = {state->data(), state->bytes(), step->data(),
                            step->bytes()};
  EXPECT_TRUE(
      ModelState(programs.graph, program, arenas).Initialize(spec.seed).ok());
  const auto executor = Executor::Create(
      program, *device, arenas, {.precision = spec.precision, .poison = true});
  EXPECT_TRUE(executor.ok()) << executor.status();
  FormulaSource source(spec.model.seq_len);
  std::vector<StepReport> reports;
  for (int64_t n = 1; n <= spec.steps; ++n) {
    const auto report = (*executor)->RunStep(
        {.seed = spec.seed, .step = n, .learning_rate = 1e-3f}, source,
        n * spec.global_batch);
    EXPECT_TRUE(report.ok()) << report.status();
    reports.push_back(*report);
  }
  return reports;
}

// Row loops are a program pass of the cpu backend alone: lowered for another,
// the same job runs its kernels one after the other.
TEST_P(SameBits, FusionChangesNoBit) {
  for (const char* policy : {"none", "full 2", "custom values"}) {
    SCOPED_TRACE(policy);
    const JobSpec spec = JobsOf(GetParam()).at(policy);
    Backend backend = MakeTestDevice(spec)->backend();
    bool has_loops = false;
    const auto fused = RunProgram(spec, backend, &has_loops);
    EXPECT_TRUE(has_loops);
    backend.kind = "other";
    const auto plain = RunProgram(spec, backend, &has_loops);
    EXPECT_FALSE(has_loops);
    ASSERT_EQ(fused.size(), plain.size());
    for (size_t n = 0; n < fused.size(); ++n) {
      EXPECT_EQ(std::bit_cast<uint64_t>(fused[n].loss),
                std::bit_cast<uint64_t>(plain[n].loss));
      EXPECT_EQ(std::bit_cast<uint64_t>(fused[n].gradient_norm),
                std::bit_cast<uint64_t>(plain[n].gradient_norm));
      EXPECT_EQ(fused[n].model_flops, plain[n].model_flops);
      EXPECT_EQ(fused[n].recompute_flops, plain[n].recompute_flops);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, SameBits, ::testing::ValuesIn(kVariants),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace ebb
