// Replays a schedule against the rules of graph_problem.h, step by step, and
// says where it breaks one. It shares nothing with the search that makes
// schedules. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/planner/graph_problem.h"

namespace ebb {

struct CheckedSchedule {
  // The rule that is broken first; empty: none.
  std::string violation;
  // Where: the position in the schedule, or its length for the end.
  int step = 0;
  // Counted up to there.
  double total_seconds = 0;
  int64_t peak_bytes = 0;
  int64_t num_computations = 0;
  int64_t num_recomputations = 0;  // of nodes that had run before

  bool ok() const { return violation.empty(); }
};

CheckedSchedule CheckSchedule(const GraphProblem& problem, int64_t budget_bytes,
                              const std::vector<ScheduleStep>& steps);

}  // namespace ebb
