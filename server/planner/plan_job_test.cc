// Plans say what the programs do: bytes, FLOPs, reasons, and what would fit.
#include "server/planner/plan_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/program/job_programs.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

JobSpec SmallJob(AttentionKind attention) {
  JobSpec spec;
  spec.model.layers = 5;
  spec.model.hidden = 64;
  spec.model.heads = spec.model.kv_heads = 4;
  spec.model.ffn = 256;
  spec.model.vocab = 257;
  spec.model.seq_len = 32;
  spec.model.attention = attention;
  spec.model.dropout = 0.1;
  spec.global_batch = 8;
  spec.micro_batch = 4;
  spec.steps = 6;
  spec.memory.budget_bytes = int64_t{1} << 40;
  return spec;
}

Plan Planned(const JobSpec& spec) {
  auto plan =
      PlanJob(spec, BuiltInCpuBackend(), RooflineProfile(BuiltInCpuBackend()));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(PlanJob, DecisionsAddUpToTheRecomputeFlops) {
  for (AttentionKind attention :
       {AttentionKind::kFused, AttentionKind::kUnfused}) {
    double without = -1;
    for (Policy policy : {Policy::kNone, Policy::kSelective, Policy::kCheap,
                          Policy::kFull, Policy::kSqrt}) {
      JobSpec spec = SmallJob(attention);
      spec.memory.policy = policy;
      const Plan plan = Planned(spec);
      double decided = 0;
      for (const Decision& decision : plan.decisions) {
        EXPECT_FALSE(decision.reason.empty());
        EXPECT_GT(decision.bytes, 0) << decision.value;
        decided += decision.flops;
      }
      // What fused attention computes twice inside its backward pass is no
      // decision: policy none has it alone.
      if (policy == Policy::kNone) without = plan.recompute_flops;
      EXPECT_DOUBLE_EQ(decided + without, plan.recompute_flops)
          << PolicyName(policy);
    }
  }
}

// A worker gets the decisions that the plan shows, no others.
TEST(PlanJob, ShownDecisionsMakeTheSameProgram) {
  for (Policy policy : {Policy::kNone, Policy::kSelective, Policy::kCheap,
                        Policy::kFull, Policy::kSqrt}) {
    JobSpec spec = SmallJob(AttentionKind::kUnfused);
    spec.memory.policy = policy;
    spec.memory.group = policy == Policy::kFull ? 2 : 1;
    if (policy != Policy::kSqrt) {
      spec.memory.encode = {{"L*"}, DType::kF8E4M3};
    }
    const Plan plan = Planned(spec);
    auto programs = LowerJob(spec, plan, BuiltInCpuBackend(), 1);
    ASSERT_TRUE(programs.ok()) << programs.status();
    const RankPlan rank = PredictRank(*programs, BuiltInCpuBackend());
    EXPECT_EQ(rank.memory, plan.ranks[0].memory);
    EXPECT_EQ(rank.peak_bytes, plan.ranks[0].peak_bytes);
    EXPECT_EQ(rank.memory.Sum(), rank.peak_bytes);
    EXPECT_EQ(rank.peak_bytes, rank.state_arena_bytes + rank.step_arena_bytes +
                                   BuiltInCpuBackend().runtime_bytes);
  }
}

TEST(PlanJob, EvaluationSharesTheStepArena) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.eval.every = 2;
  spec.eval.micro = 8;
  spec.eval.seq_len = 32;
  spec.memory.policy = Policy::kFull;
  spec.micro_batch = 1;
  const Plan with = Planned(spec);
  spec.eval.every = 0;
  const Plan without = Planned(spec);
  EXPECT_GE(with.ranks[0].step_arena_bytes, without.ranks[0].step_arena_bytes);
  EXPECT_EQ(with.ranks[0].memory.Sum(), with.ranks[0].peak_bytes);
}

TEST(PlanJob, SaysWhenSelectiveSavesNothing) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.memory.policy = Policy::kSelective;
  EXPECT_THAT(absl::StrJoin(Planned(spec).notes, "\n"),
              HasSubstr("selective saves nothing"));
  spec.model.attention = AttentionKind::kUnfused;
  EXPECT_EQ(absl::StrJoin(Planned(spec).notes, "\n").find("selective saves"),
            std::string::npos);
}

// What is encoded, what that costs, that bits differ, and the error: the
// format's bound until one was measured.
TEST(PlanJob, SaysWhatEncodingFreesCostsAndLoses) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.precision = DType::kF32;
  const Plan exact = Planned(spec);
  spec.memory.encode = {{"gelu", "L*.attention_norm.y"}, DType::kF8E4M3};
  CostProfile profile = RooflineProfile(BuiltInCpuBackend());
  const auto plan_with = [&] {
    auto plan = PlanJob(spec, BuiltInCpuBackend(), profile);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  };
  Plan plan = plan_with();
  int64_t freed = 0;
  int num_encoded = 0;
  for (const Decision& decision : plan.decisions) {
    if (decision.encoded == DType::kNone) continue;
    ++num_encoded;
    freed += decision.bytes;
    EXPECT_GT(decision.seconds, 0);
    EXPECT_GT(decision.flops, 0);
    EXPECT_THAT(decision.reason, HasSubstr("kept as fp8_e4m3 of "));
    EXPECT_THAT(decision.reason,
                HasSubstr("error: at most 6.2 % of an element that is not tiny "
                          "beside its row's largest, not measured yet"));
  }
  EXPECT_EQ(num_encoded, 2);
  EXPECT_EQ(exact.ranks[0].saved_bytes - plan.ranks[0].saved_bytes, freed);
  EXPECT_EQ(plan.recompute_flops, exact.recompute_flops);
  EXPECT_EQ(plan.model_flops, exact.model_flops);
  EXPECT_GT(plan.step_seconds, exact.step_seconds);
  EXPECT_THAT(absl::StrJoin(plan.notes, "\n"),
              HasSubstr("memory.encode fp8_e4m3 is lossy"));

  // 4 x 32 rows of a microbatch.
  EncodeErrors encoded;
  encoded.values = {"L*.mlp.act.y"};
  encoded.types = {{DType::kF32, 128, 256}};
  encoded.format = DType::kF8E4M3;
  AddEncodeErrors(encoded, {{"L*.mlp.act.y", 0.03, 0.5}}, false,
                  profile.measured);
  const auto reason = [&plan] {
    for (const Decision& decision : plan.decisions) {
      if (decision.value == "L*.mlp.act.y") return decision.reason;
    }
    return std::string();
  };
  plan = plan_with();
  EXPECT_THAT(reason(), HasSubstr("error: 3 % root mean square, 0.5 at most, "
                                  "measured on random weights and tokens"));
  AddEncodeErrors(encoded, {{"L*.mlp.act.y", 0.02, 0.25}}, true,
                  profile.measured);
  plan = plan_with();
  EXPECT_THAT(reason(), HasSubstr("error: 2 % root mean square, 0.25 at most, "
                                  "measured while a job of this shape"));

  // What is not kept is not encoded, and the plan says so.
  spec.memory.policy = Policy::kFull;
  EXPECT_THAT(absl::StrJoin(Planned(spec).notes, "\n"),
              HasSubstr("memory.encode fp8_e4m3 encodes nothing here"));
  spec.memory.encode.values.push_back("L*");
  EXPECT_THAT(absl::StrJoin(Planned(spec).notes, "\n"),
              HasSubstr("not encoded, since backward does not read it as "
                        "forward left it: L*.attention_norm.y"));
  spec.memory.encode.values = {"nothing"};
  EXPECT_EQ(PlanJob(spec, BuiltInCpuBackend(), profile).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(PlanJob, MisfitNamesShortfallAndWhatFits) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.memory.policy = Policy::kFull;
  const int64_t full = Planned(spec).ranks[0].peak_bytes;
  spec.memory.policy = Policy::kNone;
  const int64_t none = Planned(spec).ranks[0].peak_bytes;
  ASSERT_GT(none, full);
  spec.memory.budget_bytes = full;
  const Plan plan = Planned(spec);
  EXPECT_FALSE(plan.fits);
  EXPECT_THAT(plan.shortfall, HasSubstr("short of"));
  EXPECT_THAT(plan.shortfall, HasSubstr(absl::StrCat(none - full, " B)")));
  EXPECT_THAT(plan.shortfall, HasSubstr("memory.policy full fits, with"));
  spec.memory.budget_bytes = 1;
  const std::string nothing = Planned(spec).shortfall;
  EXPECT_THAT(nothing,
              HasSubstr("the smallest plan (memory.policy auto) needs"));
  EXPECT_THAT(nothing, HasSubstr("set memory.budget to one of these"));
  EXPECT_EQ(Planned(SmallJob(AttentionKind::kFused)).shortfall, "");
}

// A policy and a micro batch that only together fit are both named.
TEST(PlanJob, MisfitNamesTwoChangesThatFitTogether) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.micro_batch = spec.global_batch;
  spec.memory.policy = Policy::kFull;
  const int64_t full = Planned(spec).ranks[0].peak_bytes;
  spec.micro_batch = 1;
  const int64_t least = Planned(spec).ranks[0].peak_bytes;
  ASSERT_GT(full, least);
  spec.memory.policy = Policy::kNone;
  const int64_t small = Planned(spec).ranks[0].peak_bytes;
  ASSERT_GT(std::min(small, full), least);
  spec.micro_batch = spec.global_batch;
  spec.memory.budget_bytes = least;
  EXPECT_THAT(Planned(spec).shortfall,
              HasSubstr("set memory.policy auto and batch.micro 1"));
}

// What `auto` cannot fit by itself it can with state in host memory.
TEST(PlanJob, MisfitNamesStateThatMayLeaveTheDevice) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.memory.policy = Policy::kAuto;
  spec.memory.host_budget_bytes = int64_t{1} << 40;
  spec.memory.budget_bytes = 1;
  spec.micro_batch = 1;
  spec.memory.budget_bytes = Planned(spec).ranks[0].peak_bytes - 1;
  EXPECT_THAT(Planned(spec).shortfall,
              HasSubstr("memory.offload_optimizer host fits, with "));
  spec.memory.offload_optimizer = Offload::kHost;
  EXPECT_TRUE(Planned(spec).fits);
}

// No policy makes room for state in host memory.
TEST(PlanJob, HostMisfitOffersNoPolicyForState) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.memory.policy = Policy::kAuto;
  spec.memory.offload_optimizer = Offload::kHost;
  spec.memory.host_budget_bytes = 1000;
  const Plan plan = Planned(spec);
  EXPECT_FALSE(plan.fits);
  EXPECT_THAT(plan.shortfall, HasSubstr("of host memory, have 1000 B"));
  EXPECT_THAT(plan.shortfall, Not(HasSubstr("memory.policy")));
  EXPECT_THAT(plan.shortfall, HasSubstr("memory.offload_optimizer none fits"));
}

TEST(PlanJob, OffloadMovesBytesToTheHostAndSaysSo) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.memory.host_budget_bytes = int64_t{1} << 40;
  const Plan kept = Planned(spec);
  spec.memory.offload = Offload::kHost;
  const Plan plan = Planned(spec);
  EXPECT_TRUE(plan.fits);
  EXPECT_LT(plan.ranks[0].peak_bytes, kept.ranks[0].peak_bytes);
  EXPECT_EQ(kept.ranks[0].host_bytes, 0);
  int64_t offloaded = 0;
  for (const Decision& decision : plan.decisions) {
    if (!IsOffload(decision.decision)) continue;
    offloaded += decision.bytes;
    EXPECT_EQ(decision.last_layer, 3) << decision.value;
    EXPECT_THAT(decision.reason, HasSubstr("host memory"));
  }
  EXPECT_EQ(plan.ranks[0].host_bytes, offloaded);
  EXPECT_THAT(absl::StrJoin(plan.notes, "\n"),
              HasSubstr("the last group of layers (L4) keeps"));
  // A worker lowers the decisions that people see.
  const auto worker = LowerJob(spec, plan, BuiltInCpuBackend(), 1);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(PredictRank(*worker, BuiltInCpuBackend()).host_bytes, offloaded);

  spec.model.layers = 1;
  EXPECT_THAT(absl::StrJoin(Planned(spec).notes, "\n"),
              HasSubstr("memory.offload moves nothing"));
}

// The last word of a misfit says all that could be done.
TEST(PlanJob, MisfitOfTheSmallestPlanNamesStateThatMayLeaveTheDevice) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.memory.policy = Policy::kAuto;
  spec.memory.host_budget_bytes = int64_t{1} << 40;
  JobSpec smallest = spec;
  smallest.micro_batch = 1;
  smallest.memory.offload_optimizer = smallest.memory.offload_parameters =
      Offload::kHost;
  smallest.memory.budget_bytes = 1;
  // A misfit has its least plan.
  const int64_t least = Planned(smallest).ranks[0].peak_bytes;
  for (const bool fits : {true, false}) {
    spec.memory.budget_bytes = smallest.memory.budget_bytes = least - !fits;
    EXPECT_EQ(Planned(smallest).fits, fits);
    const Plan plan = Planned(spec);
    EXPECT_FALSE(plan.fits);
    EXPECT_THAT(plan.shortfall,
                HasSubstr("with batch.micro 1 and memory.offload_optimizer "
                          "host and memory.offload_parameters host it needs "));
    EXPECT_THAT(
        plan.shortfall,
        HasSubstr(fits ? "set memory.policy auto and batch.micro 1 and "
                         "memory.offload_optimizer host and "
                         "memory.offload_parameters host"
                       : "set memory.budget to one of these or take a smaller "
                         "model"));
  }
}

// Where inputs of groups wait elsewhere, the program spells more groups out;
// the plan is taken all the same.
TEST(PlanJob, LargeGroupsMayOffload) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.model.layers = 390;
  spec.memory.policy = Policy::kFull;
  spec.memory.group = 130;
  spec.memory.budget_bytes = spec.memory.host_budget_bytes = int64_t{1} << 50;
  for (const Offload place : {Offload::kNone, Offload::kHost}) {
    spec.memory.offload = place;
    EXPECT_TRUE(Planned(spec).fits);
  }
}

TEST(PlanJob, HostMemoryHasABudgetOfItsOwn) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.memory.offload = Offload::kHost;
  spec.memory.host_budget_bytes = int64_t{1} << 40;
  const int64_t host = Planned(spec).ranks[0].host_bytes;
  spec.memory.host_budget_bytes = host;
  EXPECT_TRUE(Planned(spec).fits);
  spec.memory.host_budget_bytes = host - 64;
  const Plan plan = Planned(spec);
  EXPECT_FALSE(plan.fits);
  EXPECT_THAT(plan.shortfall, HasSubstr(absl::StrCat(host, " B) of host")));
  EXPECT_THAT(plan.shortfall, HasSubstr("short of 64 B"));
  EXPECT_THAT(plan.shortfall, HasSubstr("memory.policy cheap fits, with"));
  EXPECT_THAT(plan.shortfall,
              HasSubstr(absl::StrCat("memory.host_budget ", host)));
}

TEST(PlanJob, MisfitNamesOffloadWhereThatFits) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.memory.host_budget_bytes = int64_t{1} << 40;
  spec.memory.offload = Offload::kHost;
  spec.memory.budget_bytes = Planned(spec).ranks[0].peak_bytes;
  EXPECT_TRUE(Planned(spec).fits);
  spec.memory.offload = Offload::kNone;
  EXPECT_THAT(Planned(spec).shortfall,
              HasSubstr("memory.offload host fits, with"));
}

TEST(PlanJob, OptimizerStateLeavesTheDeviceUnderEveryPolicy) {
  for (const Policy policy : {Policy::kNone, Policy::kFull, Policy::kAuto}) {
    SCOPED_TRACE(PolicyName(policy));
    JobSpec spec = SmallJob(AttentionKind::kFused);
    spec.memory.policy = policy;
    spec.memory.host_budget_bytes = int64_t{1} << 40;
    const Plan kept = Planned(spec);
    spec.memory.offload_optimizer = Offload::kHost;
    const Plan plan = Planned(spec);
    const int64_t state = kept.ranks[0].memory[MemoryClass::kOptimizer];
    EXPECT_EQ(plan.ranks[0].host_bytes, state);
    EXPECT_EQ(kept.ranks[0].peak_bytes - plan.ranks[0].peak_bytes, state);
    EXPECT_EQ(plan.ranks[0].memory[MemoryClass::kOptimizer], 0);
    EXPECT_GT(plan.step_seconds, kept.step_seconds);
    const Decision& decision = plan.decisions.back();
    EXPECT_EQ(decision.value, kOptimizerState);
    EXPECT_EQ(decision.decision, ActivationDecision::kOffloadHost);
    EXPECT_EQ(decision.bytes, state);
    EXPECT_NEAR(decision.seconds, plan.step_seconds - kept.step_seconds,
                0.2 * decision.seconds);
    EXPECT_THAT(decision.reason, HasSubstr("in host memory"));

    spec.memory.host_budget_bytes = state - 64;
    const Plan refused = Planned(spec);
    EXPECT_FALSE(refused.fits);
    EXPECT_THAT(refused.shortfall, HasSubstr("short of 64 B"));
    EXPECT_THAT(refused.shortfall,
                HasSubstr("memory.offload_optimizer none fits, with"));
  }
}

TEST(PlanJob, ParametersLeaveTheDeviceUnderEveryPolicy) {
  for (const Policy policy : {Policy::kNone, Policy::kFull, Policy::kAuto}) {
    SCOPED_TRACE(PolicyName(policy));
    JobSpec spec = SmallJob(AttentionKind::kFused);
    spec.memory.policy = policy;
    spec.memory.host_budget_bytes = int64_t{1} << 40;
    const Plan kept = Planned(spec);
    spec.memory.offload_parameters = Offload::kHost;
    const Plan plan = Planned(spec);
    const int64_t state = kept.ranks[0].memory[MemoryClass::kParameters];
    EXPECT_EQ(plan.ranks[0].host_bytes, state);
    EXPECT_LT(plan.ranks[0].memory[MemoryClass::kParameters], state);
    EXPECT_LT(plan.ranks[0].peak_bytes, kept.ranks[0].peak_bytes);
    const Decision& decision = plan.decisions.back();
    EXPECT_EQ(decision.value, kParameters);
    EXPECT_EQ(decision.bytes, state);
    EXPECT_NEAR(decision.seconds, plan.step_seconds - kept.step_seconds,
                0.2 * decision.seconds);
  }
}

TEST(PlanJob, MisfitNamesOffloadOfTheOptimizerWhereThatFits) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.memory.policy = Policy::kFull;
  spec.memory.host_budget_bytes = int64_t{1} << 40;
  spec.memory.offload_optimizer = Offload::kHost;
  spec.memory.budget_bytes = Planned(spec).ranks[0].peak_bytes;
  EXPECT_TRUE(Planned(spec).fits);
  spec.memory.offload_optimizer = Offload::kNone;
  EXPECT_THAT(Planned(spec).shortfall,
              HasSubstr("memory.offload_optimizer host fits, with"));
}

TEST(PlanJob, CandidatesAreSortedByPeak) {
  const Plan plan = Planned(SmallJob(AttentionKind::kUnfused));
  ASSERT_EQ(plan.pareto.size(), 5u);
  for (size_t i = 1; i < plan.pareto.size(); ++i) {
    EXPECT_LE(plan.pareto[i - 1].peak_bytes, plan.pareto[i].peak_bytes);
  }
}

// The shape of Korthikanti et al. 2022, table 3, 1T, as one rank's arithmetic.
TEST(PlanJob, PlansAJobFarLargerThanTheMachine) {
  JobSpec spec = SmallJob(AttentionKind::kUnfused);
  spec.model.layers = 128;
  spec.model.hidden = 25600;
  spec.model.heads = spec.model.kv_heads = 160;
  spec.model.ffn = 102400;
  spec.model.vocab = 51200;
  spec.model.seq_len = 2048;
  spec.micro_batch = 1;
  spec.global_batch = 512;
  const Plan plan = Planned(spec);
  EXPECT_FALSE(plan.fits);
  // 1008 billion parameters: 2 bytes each in bf16, 4 of gradient, 12 of master
  // and moments. No 32-bit count anywhere.
  const int64_t h = spec.model.hidden;
  const int64_t parameters = 128 * (12 * h * h + 13 * h) +
                             (spec.model.vocab + spec.model.seq_len) * h +
                             2 * h;
  const MemoryBytes& memory = plan.ranks[0].memory;
  EXPECT_EQ(memory[MemoryClass::kParameters], 2 * parameters);
  EXPECT_EQ(memory[MemoryClass::kGradients], 4 * parameters);
  EXPECT_EQ(memory[MemoryClass::kOptimizer], 12 * parameters);
  // Korthikanti et al. 2022, equation 7, and what is no matrix product.
  const double s = 2048, width = static_cast<double>(h);
  const double products = 72.0 * 512 * 128 * s * width * width *
                          (1 + s / (6 * width) + 51200 / (12 * width * 128));
  EXPECT_GT(plan.model_flops, products);
  EXPECT_LT(plan.model_flops, 1.01 * products);
}

TEST(DumpJob, HasBothPrograms) {
  JobSpec spec = SmallJob(AttentionKind::kFused);
  spec.eval.every = 1;
  spec.eval.micro = 2;
  spec.eval.seq_len = 16;
  const Plan plan = Planned(spec);
  auto dump = DumpJob(spec, plan, BuiltInCpuBackend());
  ASSERT_TRUE(dump.ok());
  EXPECT_THAT(*dump, HasSubstr("block backward_layer  layers 4..0"));
  EXPECT_THAT(*dump, HasSubstr("# evaluation"));
}

}  // namespace
}  // namespace ebb
