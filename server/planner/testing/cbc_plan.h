// The mixed-integer program of Checkmate (Jain et al., MLSys 2020, eq. 1 to 9),
// solved by Cbc: nodes are computed in stages that each reach one node further
// in the order of the file. Orders that are no such stages are not looked at,
// so the planner may be better, never worse.
#pragma once

#include <cstdint>

#include "server/planner/graph_problem.h"

namespace ebb {

struct CbcPlan {
  bool found = false;    // a schedule
  bool optimal = false;  // proven, among those of the program
  bool feasible = true;  // false: proven that the program has none
  double seconds = 0;    // of the best found
};

// REQUIRES: the outputs need every node, and each may be computed again.
CbcPlan SolveWithCbc(const GraphProblem& problem, int64_t budget_bytes,
                     double time_limit_seconds);

}  // namespace ebb
