// Plans any computation graph within a memory budget: the schedule of least
// seconds, nodes computed again where that pays, with a proven bound. Pure: the
// caller watches the clock.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "server/planner/graph_problem.h"

namespace ebb {

struct GraphPlanOptions {
  // The share of the time that is used up, asked often; from 1 on the search
  // ends with what it has.
  std::function<double()> time_used = [] { return 0.0; };
  // Memory that the search may hold.
  int64_t search_bytes = int64_t{512} << 20;
};

struct GraphPlan {
  enum class Outcome : uint8_t {
    kPlanned,
    kInfeasible,  // proven: nothing fits the budget
    kUndecided,   // the time or memory was too short to tell
  };
  Outcome outcome = Outcome::kUndecided;

  // kPlanned:
  std::vector<ScheduleStep> steps;
  double total_seconds = 0;
  int64_t peak_bytes = 0;
  // Proven, up to 1e-11 of it; the total itself if that is optimal.
  double lower_bound_seconds = 0;
  bool optimal = false;

  // Else: no schedule fits less than this bound, and one was found that fits
  // the budget `found` (0: none was). Equal: the least feasible budget.
  int64_t least_budget_bound = 0;
  int64_t least_budget_found = 0;

  int64_t num_states = 0;  // that the searches looked at
};

// REQUIRES: a problem that ReadGraphProblem would give, and a budget of at most
// kMaxProblemBudget. Cost: exponential in the worst case, bounded by the
// options; graphs of some 25 nodes take milliseconds.
GraphPlan PlanGraph(const GraphProblem& problem, int64_t budget_bytes,
                    const GraphPlanOptions& options);

}  // namespace ebb
