// From decisions, value by value and layer by layer, to segments of layers that
// run as one block.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/graph.h"
#include "worker/program/draft.h"
#include "worker/program/plan.h"

namespace ebb {

// A group starts at every layer whose input is kept; consecutive groups with
// equal decisions form a segment. The stream's first and last instance are
// always kept. Cost: layers x values.
// Errors: INVALID_ARGUMENT for a decision on a value that is no activation of
// the layers, or on layers that do not exist.
absl::StatusOr<std::vector<LayerSegment>> MakeSegments(const Graph& graph,
                                                       const Plan& plan);

}  // namespace ebb
