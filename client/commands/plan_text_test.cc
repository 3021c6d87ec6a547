// A plan as people read it.
#include "client/commands/plan_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job_service.pb.h"
#include "proto/plan.pb.h"

namespace ebb {
namespace {

v1::PlanCandidate Candidate(const std::string& policy, int64_t peak_bytes,
                            double recompute_flops, bool fits) {
  v1::PlanCandidate candidate;
  candidate.set_policy(policy);
  candidate.set_peak_bytes(peak_bytes);
  candidate.set_saved_bytes(peak_bytes / 4);
  candidate.set_step_seconds(0.05);
  candidate.set_model_flops(3e9);
  candidate.set_recompute_flops(recompute_flops);
  candidate.set_fits(fits);
  return candidate;
}

v1::Plan SmallPlan() {
  v1::Plan plan;
  plan.set_fits(true);
  plan.set_policy("full");
  plan.set_group(2);
  plan.set_budget_bytes(16 << 20);
  plan.set_step_seconds(0.05);
  plan.set_bound_seconds(0.045);
  plan.set_model_flops(3e9);
  plan.set_recompute_flops(1e9);
  v1::RankPlan* rank = plan.add_ranks();
  (*rank->mutable_memory())["parameters"] = 1 << 20;
  (*rank->mutable_memory())["saved"] = 512;
  rank->set_peak_bytes((1 << 20) + 512);
  rank->set_state_arena_bytes(3 << 20);
  rank->set_step_arena_bytes(2 << 20);
  rank->set_saved_bytes(512);
  v1::Decision* decision = plan.add_decisions();
  decision->set_value("L0-L3.mlp_act.y");
  decision->set_decision("recompute");
  decision->set_bytes(4096);
  decision->set_seconds(3e-3);
  decision->set_flops(2e6);
  decision->set_reason("inside a group");
  *plan.add_pareto() = Candidate("full", (1 << 20) + 512, 1e9, true);
  *plan.add_pareto() = Candidate("none", 4 << 20, 0, true);
  v1::Backend* backend = plan.mutable_backend();
  backend->set_kind("cpu");
  backend->set_instruction_set("avx2");
  backend->set_threads(2);
  plan.add_notes("a note");
  return plan;
}

TEST(PlanText, Whole) {
  EXPECT_EQ(PlanText(SmallPlan(), "small"),
            R"(plan of small: policy full, groups of 2 layers, fits
machine: cpu, avx2, 2 threads
budget: 16.0 MiB (16777216 B) of device memory a rank
step time: 50.0 ms, of 45.0 ms that any plan takes at least
FLOPs of a step over all ranks, attention as full square: model 3.00 GFLOP, recompute 1.00 GFLOP (25.0 %)

memory at the peak of a step:
  CLASS                        RANK 0
  parameters     1.00 MiB (1048576 B)
  gradients                       0 B
  optimizer                       0 B
  saved                         512 B
  live                            0 B
  recompute                       0 B
  workspace                       0 B
  communication                   0 B
  runtime                         0 B
  fragmentation                   0 B
  peak           1.00 MiB (1049088 B)
  state arena    3.00 MiB (3145728 B)
  step arena     2.00 MiB (2097152 B)
  largest saved                 512 B
  host                            0 B
  disk                            0 B

what each policy would cost (recompute: FLOPs and share of all FLOPs, attention as full square):
  POLICY                  PEAK                 SAVED     STEP            RECOMPUTE  FITS
  full    1.00 MiB (1049088 B)    256 KiB (262272 B)  50.0 ms  1.00 GFLOP (25.0 %)  yes
  none    4.00 MiB (4194304 B)  1.00 MiB (1048576 B)  50.0 ms       0 FLOP (0.0 %)  yes

decisions, for values that backward reads:
  VALUE            DECISION               BYTES     TIME       FLOPS  REASON
  L0-L3.mlp_act.y  recompute  4.00 KiB (4096 B)  3.00 ms  2.00 MFLOP  inside a group

notes:
  a note
)");
}

TEST(PlanText, ManyRanksShowTheLargest) {
  v1::Plan plan = SmallPlan();
  for (int rank = 1; rank < 8; ++rank) {
    plan.add_ranks()->set_rank(rank);
    plan.mutable_ranks(rank)->set_peak_bytes(rank == 5 ? 9 << 20 : 1);
  }
  EXPECT_THAT(PlanMemoryText(plan),
              testing::AllOf(testing::HasSubstr("the largest of 8 ranks"),
                             testing::HasSubstr("RANK 5"),
                             testing::Not(testing::HasSubstr("RANK 0"))));
}

TEST(PlanText, MeasuredMemoryStandsBesideThePredicted) {
  v1::Plan plan;
  v1::RankPlan* rank = plan.add_ranks();
  rank->set_peak_bytes(300);
  (*rank->mutable_memory())["saved"] = 200;
  (*rank->mutable_memory())["live"] = 100;
  v1::Step step;
  v1::RankStep* measured = step.add_ranks();
  (*measured->mutable_memory())["saved"].set_peak_bytes(201);
  (*measured->mutable_memory())["live"].set_peak_bytes(102);
  const std::string text = PlanMemoryText(plan, &step);
  EXPECT_THAT(text, testing::ContainsRegex("CLASS +RANK 0 +MEASURED"));
  EXPECT_THAT(text, testing::ContainsRegex("saved +200 B +201 B"));
  EXPECT_THAT(text, testing::ContainsRegex("peak +300 B +303 B"));
  EXPECT_THAT(PlanMemoryText(plan),
              testing::Not(testing::HasSubstr("MEASURED")));
}

}  // namespace
}  // namespace ebb
