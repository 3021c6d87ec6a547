// From decisions, value by value and layer by layer, to segments of layers that
// run as one block.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/graph.h"
#include "worker/program/draft.h"
#include "worker/program/plan.h"

namespace ebb {

// A group starts at every layer whose input is not computed again; consecutive
// groups with equal decisions form a segment. The stream's first instance is
// never computed again, its last is kept. A group writes the next one's input
// to where the next segment has it, so the last group is a segment of its own
// where inputs of the next one are offloaded, or encoded, and its own are not,
// or the other way round. Cost: layers x values.
// Errors: INVALID_ARGUMENT for a decision on a value that is no activation of
// the layers, or on layers that do not exist.
absl::StatusOr<std::vector<LayerSegment>> MakeSegments(const Graph& graph,
                                                       const Plan& plan);

// Where the plan has parameters and the optimizer's state.
StatePlace StatePlaceOf(const Plan& plan);

}  // namespace ebb
