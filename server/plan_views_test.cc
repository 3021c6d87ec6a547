// What a plan says besides itself, as messages.
#include "server/plan_views.h"

#include <gtest/gtest.h>

#include "server/planner/plan_job.h"

namespace ebb {
namespace {

JobSpec SmallJob() {
  JobSpec spec;
  spec.model.layers = 5;
  spec.model.hidden = 64;
  spec.model.heads = spec.model.kv_heads = 4;
  spec.model.ffn = 256;
  spec.model.vocab = 257;
  spec.model.seq_len = 32;
  spec.model.attention = AttentionKind::kUnfused;
  spec.model.dropout = 0.1;
  spec.global_batch = 8;
  spec.micro_batch = 4;
  spec.steps = 6;
  spec.memory.policy = Policy::kFull;
  spec.memory.budget_bytes = int64_t{1} << 40;
  return spec;
}

Plan Planned(const JobSpec& spec) {
  const Backend backend = BuiltInCpuBackend();
  auto plan = PlanJob(spec, backend, RooflineProfile(backend));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(PlanViews, TimelineEndsWhereThePlanSays) {
  const Plan plan = Planned(SmallJob());
  const auto timeline = TimelineOfPlan(SmallJob(), plan, 100);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  EXPECT_EQ(timeline->points_size(), 100);
  EXPECT_EQ(timeline->num_microbatches(), 2);
  int64_t largest = 0;
  int64_t recompute = 0;
  for (const v1::TimelinePoint& point : timeline->points()) {
    int64_t sum = 0;
    for (const auto& [name, bytes] : point.memory()) sum += bytes;
    largest = std::max(largest, sum);
    recompute += point.num_recompute();
  }
  // The plan's peak has what belongs to nobody, too.
  EXPECT_EQ(largest, plan.ranks[0].peak_bytes -
                         plan.ranks[0].memory[MemoryClass::kFragmentation]);
  EXPECT_GT(timeline->points(0).memory().at("runtime"), 0);
  EXPECT_GT(recompute, 0);
  EXPECT_EQ(timeline->blocks(0).name(), "zero_totals");
}

TEST(PlanViews, AccountingIsByPolicy) {
  const auto paper = PaperAccountingOfPlan(SmallJob(), Planned(SmallJob()));
  ASSERT_TRUE(paper.ok()) << paper.status();
  ASSERT_EQ(paper->policies_size(), 3);
  EXPECT_EQ(paper->policies(0).policy(), "none");
  EXPECT_EQ(paper->policies(1).policy(), "selective");
  EXPECT_EQ(paper->policies(2).policy(), "full");
  int64_t sum = 0;
  for (const v1::AccountedTensor& tensor : paper->tensors()) {
    sum += tensor.paper_bytes().at("selective");
  }
  EXPECT_EQ(sum, paper->policies(1).paper().layer_bytes());
  const v1::AccountedSums& full = paper->policies(2).paper();
  EXPECT_GT(full.recompute_flops(), 0);
  EXPECT_EQ(full.hardware_flops(),
            paper->model_flops() + full.recompute_flops());
  ASSERT_EQ(paper->conventions_size(), 4);
  EXPECT_EQ(paper->conventions(0).name(), "causal");
}

}  // namespace
}  // namespace ebb
