// The planner against Cbc on chains of forward and backward nodes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "server/planner/graph_planner.h"
#include "server/planner/schedule_checker.h"
#include "server/planner/testing/cbc_plan.h"
#include "server/planner/testing/graph_makers.h"

namespace ebb {
namespace {

// EBB_FULL_COUNTS in the environment takes all chains, of 5 to 23 nodes, and
// gives Cbc a minute for each; a plain run takes four and ten seconds.
constexpr int kFullChains = 30;
constexpr int kChains = 4;
constexpr double kFullSeconds = 60;
constexpr double kSeconds = 10;

TEST(GraphPlannerCbc, IsNeverWorseOnChainsAndEqualToProvenOptima) {
  const bool full = std::getenv("EBB_FULL_COUNTS") != nullptr;
  const int num_chains = full ? kFullChains : kChains;
  int num_proven = 0;
  for (int seed = 0; seed < num_chains; ++seed) {
    const int num_nodes = 5 + 2 * (seed * 3 % 10);
    const GraphProblem problem = TrainingChain(100 + seed, num_nodes);
    const int64_t least = PlanGraph(problem, 1, {}).least_budget_found;
    const int64_t budget = (least + FileOrderPeak(problem)) / 2;
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " +
                 std::to_string(num_nodes) + " nodes, budget " +
                 std::to_string(budget));
    const GraphPlan plan = PlanGraph(problem, budget, {});
    ASSERT_EQ(plan.outcome, GraphPlan::Outcome::kPlanned);
    EXPECT_TRUE(plan.optimal);
    EXPECT_TRUE(CheckSchedule(problem, budget, plan.steps).ok());
    const CbcPlan cbc =
        SolveWithCbc(problem, budget, full ? kFullSeconds : kSeconds);
    EXPECT_TRUE(cbc.feasible);
    if (!cbc.found) continue;
    EXPECT_LE(plan.total_seconds, cbc.seconds + 1e-6);
    if (!cbc.optimal) continue;
    ++num_proven;
    // Along a chain no other order is better than stages.
    EXPECT_NEAR(plan.total_seconds, cbc.seconds, 1e-6);
  }
  EXPECT_GT(num_proven, num_chains / 2);
}

}  // namespace
}  // namespace ebb
