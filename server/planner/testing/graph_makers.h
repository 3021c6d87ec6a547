// Graphs for tests of the planner: chains like those of training, and random
// ones. The same seed gives the same graph.
#pragma once

#include <cstdint>

#include "server/planner/graph_problem.h"

namespace ebb {

// 2L+1 nodes of one second and one byte: node i reads i-1, and above L also
// 2L-i. The last one is the output.
GraphProblem UnitChain(int num_layers);

// num_nodes (odd, at least 5) in the same shape, with whole seconds and bytes
// that differ, workspaces, and a backward pass about twice as long.
GraphProblem TrainingChain(uint64_t seed, int num_nodes);

// Of one of three shapes, one to three outputs, whole seconds (some 0) and
// bytes (some 0), workspaces, up to two nodes that may run once only.
GraphProblem RandomGraph(uint64_t seed, int num_nodes);

// Peak of running every node once in the order of the file, each value freed
// after its last use.
int64_t FileOrderPeak(const GraphProblem& problem);

// Of every node that the outputs need, once.
double OnceSeconds(const GraphProblem& problem);

}  // namespace ebb
