// The best schedule of a small graph by looking at every set of resident
// values: the specification that the planner is held to.
#pragma once

#include <cstdint>
#include <optional>

#include "server/planner/graph_problem.h"

namespace ebb {

// Shortest path over resident sets: computing a node is an edge of its seconds,
// freeing a value one of none. Empty: no schedule fits. Cost: 2^nodes states
// (and twice that for each node that may run once only).
std::optional<double> ExhaustiveSeconds(const GraphProblem& problem,
                                        int64_t budget_bytes);

// The least budget that some schedule fits: the same with the bytes of a moment
// in place of seconds and their largest in place of their sum. Empty: none.
std::optional<int64_t> ExhaustiveLeastBudget(const GraphProblem& problem);

}  // namespace ebb
