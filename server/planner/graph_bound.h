// What no schedule of a graph can do better, by relaxations that know nothing
// of the search. Pure.
#pragma once

#include <cstdint>
#include <functional>

#include "server/planner/graph_problem.h"

namespace ebb {

// No schedule fits a smaller budget: the largest need of one node, or of the
// outputs at the end. (That this much is enough is not said.)
int64_t LeastBudgetBound(const GraphProblem& problem);

// No schedule within the budget takes fewer seconds.
//
// Take the moment at which a node v runs for the first time. Its ancestors have
// run, none of its descendants has. Only what fits beside its inputs, output
// and workspace is resident; whatever the descendants and the outputs need and
// is not, and all that rebuilding this needs in turn, runs after it: for
// ancestors of v once more. The least time of that, over all sets that fit, is
//   min  sum of c_p m_p  (p an ancestor of v)
//   over sets m (runs after v), r (resident now) with
//   every node that m or the outputs need in m or r, and bytes of r <= room,
// which rebuild_bound.h bounds by minimum cuts. The bound is the time of every
// needed node once plus the largest such value over v.
//
// `stop` is asked between nodes; true ends with what is proven by then.
double SecondsBound(const GraphProblem& problem, int64_t budget_bytes,
                    const std::function<bool()>& stop);

}  // namespace ebb
