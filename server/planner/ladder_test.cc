// Falling peaks, nothing that saves nothing, the spec's own budget.
#include "server/planner/ladder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/planner/plan_job.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

JobSpec Job(Policy policy, AttentionKind attention) {
  JobSpec spec;
  spec.model.layers = 12;
  spec.model.hidden = 64;
  spec.model.heads = spec.model.kv_heads = 4;
  spec.model.ffn = 256;
  spec.model.vocab = 257;
  spec.model.seq_len = 64;
  spec.model.attention = attention;
  spec.global_batch = spec.micro_batch = 4;
  spec.steps = 1;
  spec.memory.policy = policy;
  spec.memory.budget_bytes = int64_t{1} << 30;
  spec.eval.micro = 4;
  spec.eval.seq_len = 64;
  return spec;
}

std::vector<PlanRung> LadderOf(const JobSpec& spec) {
  const Backend backend = BuiltInCpuBackend();
  const CostProfile profile = RooflineProfile(backend);
  const auto plan = PlanJob(spec, backend, profile);
  EXPECT_TRUE(plan.ok()) << plan.status();
  const auto ladder = PlanLadder(spec, *plan, profile);
  EXPECT_TRUE(ladder.ok()) << ladder.status();
  int64_t peak = plan->ranks[0].peak_bytes;
  for (const PlanRung& rung : *ladder) {
    EXPECT_LT(rung.plan.ranks[0].peak_bytes, peak) << "it falls";
    peak = rung.plan.ranks[0].peak_bytes;
    EXPECT_EQ(rung.memory.policy, rung.plan.policy);
    EXPECT_TRUE(rung.plan.fits);
    EXPECT_EQ(rung.plan.graph_fingerprint, plan->graph_fingerprint);
    // The rung is what the job would be with that memory section.
    JobSpec same = spec;
    same.memory = rung.memory;
    EXPECT_EQ(PlanJob(same, backend, profile)->ranks[0].memory,
              rung.plan.ranks[0].memory);
  }
  return *ladder;
}

std::vector<Policy> Policies(const std::vector<PlanRung>& ladder) {
  std::vector<Policy> policies;
  for (const PlanRung& rung : ladder) policies.push_back(rung.memory.policy);
  return policies;
}

TEST(PlanLadder, NamedPoliciesByFallingPeak) {
  EXPECT_THAT(Policies(LadderOf(Job(Policy::kNone, AttentionKind::kUnfused))),
              ElementsAre(Policy::kSelective, Policy::kCheap, Policy::kSqrt,
                          Policy::kFull));
  // Fused attention leaves selective nothing to save.
  EXPECT_THAT(Policies(LadderOf(Job(Policy::kNone, AttentionKind::kFused))),
              ElementsAre(Policy::kCheap, Policy::kSqrt, Policy::kFull));
}

TEST(PlanLadder, AutoGoesDownItsOwnCandidates) {
  const JobSpec spec = Job(Policy::kAuto, AttentionKind::kFused);
  const std::vector<PlanRung> ladder = LadderOf(spec);
  EXPECT_THAT(Policies(ladder),
              ElementsAre(Policy::kAuto, Policy::kAuto, Policy::kAuto));
  JobSpec less = spec;
  less.memory.budget_bytes = ladder.back().plan.ranks[0].peak_bytes - 1;
  EXPECT_FALSE(
      PlanJob(less, BuiltInCpuBackend(), RooflineProfile(BuiltInCpuBackend()))
          ->fits)
      << "the last is the smallest";
}

TEST(PlanLadder, OnlyDownwards) {
  EXPECT_THAT(Policies(LadderOf(Job(Policy::kCheap, AttentionKind::kFused))),
              ElementsAre(Policy::kSqrt, Policy::kFull));
  EXPECT_THAT(LadderOf(Job(Policy::kFull, AttentionKind::kFused)), IsEmpty());
}

}  // namespace
}  // namespace ebb
