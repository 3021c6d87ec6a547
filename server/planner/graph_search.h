// Searches for the order of computations, from the end of a schedule to its
// begin.
//
// A state is the set of values that must be resident for what follows. The
// last computation before it makes one of them: it leaves the set, its inputs
// enter. The end of a schedule is the set of the graph's outputs, its begin the
// empty set. So a value is resident exactly from the computation that makes it
// to its last use, nothing has to be decided about freeing, and a smaller set
// is never worse. What remains to be computed is at least every ancestor of the
// set once; a computation beyond that is an extra one, namely one of a value
// from which another one of the set descends. Searches count extra time alone.
//
// Two kinds of computation are made at once, since no schedule can lose by
// them. They are of a value from which no other of the set descends:
//   - its inputs are in the set anyway: it might as well run last;
//   - its inputs together are no larger than itself: holding them instead of
//     it, from where it ran to here, takes no more room.
// A node that may run only once is computed only when nothing else of the set
// descends from it: afterwards nothing can need it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "server/planner/graph_problem.h"

namespace ebb {

inline constexpr int64_t kNoCost = std::numeric_limits<int64_t>::max();

// Bits of nodes, one word after the other.
using NodeSet = std::vector<uint64_t>;

// The nodes that the outputs need, by themselves, in the problem's order, as
// searches want them.
struct SearchGraph {
  explicit SearchGraph(const GraphProblem& problem);

  int num_nodes = 0;
  int num_words = 0;               // of a NodeSet
  std::vector<int> problem_nodes;  // positions in the problem
  std::vector<int64_t> bytes;
  std::vector<int64_t> workspace_bytes;
  // Seconds in whole ticks, so that sums are exact and ties are ties. A tick is
  // a power of two, at most 2^-40 of the longest node.
  std::vector<int64_t> ticks;
  double tick_seconds = 1;
  std::vector<bool> recomputable;
  std::vector<std::vector<int>> inputs;
  std::vector<int64_t> inputs_bytes;  // together
  // num_words each, node after node: its inputs; all that descend from it.
  std::vector<uint64_t> input_words;
  std::vector<uint64_t> descendant_words;
  NodeSet outputs;

  // The set and all its ancestors.
  int CountAncestors(const NodeSet& set) const;
};

enum class SearchAim : uint8_t {
  kSeconds,  // least extra ticks within a capacity
  kBytes,    // least peak, where all up to a floor are equal
};

struct SearchTask {
  const SearchGraph* graph = nullptr;
  SearchAim aim = SearchAim::kSeconds;
  NodeSet end;  // what is resident at the end
  // kSeconds: the capacity for values and workspace. kBytes: the floor.
  int64_t bytes = 0;
  // Only less is of interest.
  int64_t cost_limit = kNoCost;
  int64_t max_states = 0;
  // Asked now and then; true ends the search.
  std::function<bool()> stop = [] { return false; };
};

struct SearchResult {
  // Of the best order found; kNoCost: none below the limit.
  int64_t cost = kNoCost;
  // Nothing below the task's limit costs less; kNoCost: there is nothing.
  int64_t bound = 0;
  // Nodes of the search graph as they run.
  std::vector<int> order;
  int64_t num_states = 0;
};

// Looks at states in the order of their cost, so that the first end is the
// best. Ends early, with a bound alone, when time or room ends.
SearchResult SearchBestFirst(const SearchTask& task);

struct BeamShape {
  // States that are looked at in each level.
  int64_t width = 1;
  // What a byte that a state holds counts beside its cost.
  double byte_price = 0;
  // Look at extra computations only where no other is possible: fast, and
  // mostly good.
  bool reluctant = true;
};

// Goes through the states in levels, by the number of ancestors that remain,
// and looks at the cheapest of each. Finds orders in large graphs; its bound is
// 0 throughout.
SearchResult SearchBeam(const SearchTask& task, const BeamShape& shape);

}  // namespace ebb
