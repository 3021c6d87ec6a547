// The planner against exhaustive search, the published optima of unit chains,
// and its own promises.
#include "server/planner/graph_planner.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "server/planner/graph_bound.h"
#include "server/planner/schedule_checker.h"
#include "server/planner/testing/exhaustive_plan.h"
#include "server/planner/testing/graph_makers.h"

namespace ebb {
namespace {

// Random graphs of up to 14 and of up to 20 nodes.
constexpr int kSmallGraphs = 200;
constexpr int kSmallNodes = 14;
constexpr int kLargeGraphs = 50;
constexpr int kLargeNodes = 20;

GraphPlan Plan(const GraphProblem& problem, int64_t budget_bytes) {
  return PlanGraph(problem, budget_bytes, GraphPlanOptions());
}

// The schedule keeps the rules and does what the plan says.
void ExpectSound(const GraphProblem& problem, int64_t budget_bytes,
                 const GraphPlan& plan) {
  ASSERT_EQ(plan.outcome, GraphPlan::Outcome::kPlanned);
  const CheckedSchedule checked =
      CheckSchedule(problem, budget_bytes, plan.steps);
  EXPECT_EQ(checked.violation, "") << "at step " << checked.step;
  EXPECT_EQ(checked.total_seconds, plan.total_seconds);
  EXPECT_EQ(checked.peak_bytes, plan.peak_bytes);
  EXPECT_LE(plan.lower_bound_seconds, plan.total_seconds);
}

// Budgets around the interesting ones: too small, tight, roomy.
std::vector<int64_t> Budgets(int64_t least, int64_t roomy) {
  std::vector<int64_t> budgets = {least - 1, least};
  for (int part = 1; part <= 3; ++part) {
    budgets.push_back(least + (roomy - least) * part / 3);
  }
  return budgets;
}

// Returns at how many budgets the best schedule computes something again.
int ExpectOptimal(const GraphProblem& problem) {
  int num_recomputing = 0;
  const std::optional<int64_t> least = ExhaustiveLeastBudget(problem);
  EXPECT_TRUE(least.has_value());
  if (!least) return 0;
  EXPECT_LE(LeastBudgetBound(problem), *least);
  double seconds_before = std::numeric_limits<double>::infinity();
  for (const int64_t budget :
       Budgets(*least, std::max(*least, FileOrderPeak(problem)))) {
    SCOPED_TRACE("budget " + std::to_string(budget));
    if (budget < 0) continue;
    const GraphPlan plan = Plan(problem, budget);
    const std::optional<double> best = ExhaustiveSeconds(problem, budget);
    EXPECT_EQ(best.has_value(), budget >= *least);
    if (!best) {
      EXPECT_EQ(plan.outcome, GraphPlan::Outcome::kInfeasible);
      EXPECT_EQ(plan.least_budget_bound, *least);
      EXPECT_EQ(plan.least_budget_found, *least);
      continue;
    }
    ExpectSound(problem, budget, plan);
    EXPECT_TRUE(plan.optimal);
    EXPECT_EQ(plan.total_seconds, *best);
    EXPECT_EQ(plan.lower_bound_seconds, *best);
    EXPECT_LE(SecondsBound(problem, budget, [] { return false; }), *best);
    // Monotone: more room never takes longer.
    EXPECT_LE(plan.total_seconds, seconds_before);
    seconds_before = plan.total_seconds;
    if (*best > OnceSeconds(problem)) ++num_recomputing;
  }
  return num_recomputing;
}

TEST(GraphPlanner, EqualsExhaustiveSearchOnSmallGraphs) {
  int num_recomputing = 0;
  for (int seed = 0; seed < kSmallGraphs; ++seed) {
    const int num_nodes = 2 + seed % (kSmallNodes - 1);
    SCOPED_TRACE("seed " + std::to_string(seed));
    num_recomputing += ExpectOptimal(RandomGraph(seed, num_nodes));
  }
  // Else the graphs would be too easy to prove anything.
  EXPECT_GT(num_recomputing, kSmallGraphs / 2);
}

TEST(GraphPlanner, EqualsExhaustiveSearchOnLargerGraphs) {
  int num_recomputing = 0;
  for (int seed = 0; seed < kLargeGraphs; ++seed) {
    const int num_nodes = kSmallNodes + 1 + seed % (kLargeNodes - kSmallNodes);
    SCOPED_TRACE("seed " + std::to_string(seed));
    num_recomputing += ExpectOptimal(RandomGraph(1000 + seed, num_nodes));
  }
  EXPECT_GT(num_recomputing, kLargeGraphs);
}

TEST(GraphPlanner, FindsTheOptimaOfUnitChains) {
  // Checkmate's unit chains, whose optima two independent solvers agree on:
  // layers, budget, computations.
  constexpr int kOptima[][3] = {
      {2, 3, 6},   {2, 4, 5},                                //
      {4, 3, 15},  {4, 4, 11},   {4, 5, 10},   {4, 6, 9},    //
      {8, 3, 45},  {8, 4, 26},   {8, 5, 22},   {8, 6, 21},   //
      {8, 7, 20},  {8, 8, 19},   {8, 9, 18},   {8, 10, 17},  //
      {12, 3, 91}, {12, 4, 45},  {12, 5, 37},  {12, 6, 33},  //
      {12, 8, 31}, {12, 10, 29}, {12, 12, 27}, {12, 14, 25},
  };
  for (const auto& [layers, budget, computations] : kOptima) {
    SCOPED_TRACE(std::to_string(layers) + " layers, budget " +
                 std::to_string(budget));
    const GraphProblem problem = UnitChain(layers);
    const GraphPlan plan = Plan(problem, budget);
    ExpectSound(problem, budget, plan);
    EXPECT_TRUE(plan.optimal);
    EXPECT_EQ(plan.total_seconds, computations);
  }
  for (const int layers : {2, 4, 8, 12}) {
    const GraphPlan plan = Plan(UnitChain(layers), 2);
    EXPECT_EQ(plan.outcome, GraphPlan::Outcome::kInfeasible);
    EXPECT_EQ(plan.least_budget_bound, 3);
    EXPECT_EQ(plan.least_budget_found, 3);
  }
}

TEST(GraphPlanner, BoundOfUnitChains) {
  // At the first backward node, which holds three values, 8 - 1 others are
  // wanted and B - 3 of them fit.
  const GraphProblem problem = UnitChain(8);
  for (int budget = 3; budget <= 10; ++budget) {
    EXPECT_NEAR(SecondsBound(problem, budget, [] { return false; }),
                17 + 10 - budget, 1e-6)
        << budget;
  }
}

TEST(GraphPlanner, MoreRoomNeverTakesLonger) {
  const GraphProblem problem = TrainingChain(7, 23);
  double before = std::numeric_limits<double>::infinity();
  const int64_t least = Plan(problem, 1).least_budget_found;
  for (int64_t budget = least; budget <= FileOrderPeak(problem); ++budget) {
    const GraphPlan plan = Plan(problem, budget);
    ExpectSound(problem, budget, plan);
    EXPECT_TRUE(plan.optimal);
    EXPECT_LE(plan.total_seconds, before) << budget;
    before = plan.total_seconds;
  }
  EXPECT_EQ(before, OnceSeconds(problem));
}

TEST(GraphPlanner, AnyOrderMayBeatTheOrderOfTheFile) {
  // a and c are large, b and d small: only a, b, c, d fits.
  GraphProblem problem;
  problem.nodes = {{"a", 1, 10, {}, 0, true},
                   {"c", 1, 10, {}, 0, true},
                   {"b", 1, 1, {0}, 0, true},
                   {"d", 1, 1, {1}, 0, true}};
  problem.outputs = {2, 3};
  const GraphPlan plan = Plan(problem, 12);
  ExpectSound(problem, 12, plan);
  EXPECT_EQ(plan.total_seconds, 4);
  EXPECT_EQ(FileOrderPeak(problem), 21);
}

TEST(GraphPlanner, NodesOfOneRunAreKept) {
  // Room for keeping the input or its copy: the input cannot be made again.
  GraphProblem problem = UnitChain(4);
  problem.nodes[0].recomputable = false;
  const GraphPlan plan = Plan(problem, 4);
  ExpectSound(problem, 4, plan);
  EXPECT_EQ(plan.total_seconds, *ExhaustiveSeconds(problem, 4));
  problem.nodes[1].recomputable = problem.nodes[2].recomputable = false;
  problem.nodes[3].recomputable = false;
  EXPECT_EQ(Plan(problem, 5).outcome, GraphPlan::Outcome::kInfeasible);
  EXPECT_EQ(Plan(problem, 5).least_budget_found, 6);
}

TEST(GraphPlanner, IgnoresWhatNoOutputNeeds) {
  GraphProblem problem;
  problem.nodes = {{"a", 1, 1, {}, 0, true},
                   {"unused", 1, 1000, {0}, 5000, true},
                   {"b", 1, 1, {0}, 0, true}};
  problem.outputs = {2};
  problem.resident_bytes = 5;
  const GraphPlan plan = Plan(problem, 7);
  ExpectSound(problem, 7, plan);
  EXPECT_EQ(plan.total_seconds, 2);
  EXPECT_EQ(plan.peak_bytes, 7);
}

TEST(GraphPlanner, SecondsOfAnySizeAndNone) {
  for (const double scale : {0.0, 1e-300, 1e-9, 1e8}) {
    GraphProblem problem = UnitChain(4);
    for (ProblemNode& node : problem.nodes) node.seconds = scale;
    const GraphPlan plan = Plan(problem, 4);
    ExpectSound(problem, 4, plan);
    EXPECT_TRUE(plan.optimal);
    EXPECT_NEAR(plan.total_seconds, 11 * scale, 1e-9 * scale);
  }
}

TEST(GraphPlanner, LargeGraphsGetAScheduleAndABound) {
  // The clock is a count of the looks at it, so that the test is the same on
  // every machine.
  const GraphProblem problem = TrainingChain(3, 201);
  const int64_t budget = FileOrderPeak(problem) / 4;
  int64_t num_looks = 0;
  GraphPlanOptions options;
  options.time_used = [&num_looks] {
    return static_cast<double>(++num_looks) / 100;
  };
  const GraphPlan plan = PlanGraph(problem, budget, options);
  ExpectSound(problem, budget, plan);
  EXPECT_FALSE(plan.optimal);
  EXPECT_GT(plan.lower_bound_seconds, OnceSeconds(problem));
  EXPECT_LT(plan.total_seconds, 2 * OnceSeconds(problem));
}

TEST(GraphPlanner, LargeGraphsThatFitNothingGetABound) {
  const GraphProblem problem = TrainingChain(3, 501);
  int64_t num_looks = 0;
  GraphPlanOptions options;
  options.time_used = [&num_looks] {
    return static_cast<double>(++num_looks) / 100;
  };
  const int64_t local = LeastBudgetBound(problem);
  const GraphPlan plan = PlanGraph(problem, local - 1, options);
  EXPECT_EQ(plan.outcome, GraphPlan::Outcome::kInfeasible);
  EXPECT_GE(plan.least_budget_bound, local);
  if (plan.least_budget_found > 0) {
    EXPECT_GE(plan.least_budget_found, plan.least_budget_bound);
  }
}

TEST(GraphPlanner, EndsWhenTheTimeIsUp) {
  const GraphProblem problem = UnitChain(40);
  GraphPlanOptions options;
  options.time_used = [] { return 1.0; };
  const GraphPlan plan = PlanGraph(problem, 10, options);
  if (plan.outcome == GraphPlan::Outcome::kPlanned) {
    ExpectSound(problem, 10, plan);
    EXPECT_FALSE(plan.optimal);
  } else {
    EXPECT_EQ(plan.outcome, GraphPlan::Outcome::kUndecided);
  }
}

TEST(GraphPlanner, EndsWhenTheMemoryIsUp) {
  const GraphProblem problem = UnitChain(40);
  GraphPlanOptions options;
  options.search_bytes = 1 << 20;
  int64_t num_looks = 0;
  options.time_used = [&num_looks] {
    return static_cast<double>(++num_looks) / 300;
  };
  const GraphPlan plan = PlanGraph(problem, 10, options);
  ExpectSound(problem, 10, plan);
  EXPECT_FALSE(plan.optimal);
}

}  // namespace
}  // namespace ebb
