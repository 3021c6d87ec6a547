// What it takes at least to rebuild what is wanted from what can be held: the
// relaxation behind the bounds of the planners. It knows nothing of any search.
// Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace ebb {

// A step that makes one result, which can be held from before.
struct RebuildNode {
  // Of running it now; kCannotRun: it must be held if it is needed.
  double seconds = 0;
  // That holding its result takes; kCannotHold: it must run if it is needed.
  int64_t bytes = 0;
  // Of holding it elsewhere, without any bytes; kCannotRun: there is no such
  // place.
  double elsewhere_seconds = kCannotRun;
  std::vector<int> inputs;  // nodes whose results it reads
  bool wanted = false;
  bool given = false;  // its result is there, beside the room

  static constexpr double kCannotRun = std::numeric_limits<double>::infinity();
  static constexpr int64_t kCannotHold = -1;
};

// The least seconds over sets m (runs), r (held) and e (held elsewhere) with
// every node that is wanted, or that a node of m reads, in m, in r, in e or
// given, and the bytes of r at most `room`:
//   min  sum of seconds over m + sum of elsewhere_seconds over e.
// Charging lambda seconds for each byte of r beyond the room turns this into a
// minimum cut for every lambda >= 0, and each value is a bound (Lagrangian
// relaxation); the best lambda is found by intersecting the lines of the cuts
// met so far. Returns a value that is never above the minimum; 0 also where
// nothing is possible.
double LeastRebuildSeconds(const std::vector<RebuildNode>& nodes, int64_t room);

}  // namespace ebb
