// The named recompute policies as plans: which values of which layers are kept.
// Design section 4 has the table; costs and reasons are the planner's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/graph.h"
#include "worker/model/job_spec.h"
#include "worker/program/plan.h"

namespace ebb {

// Decides on every value of the layers that the policy names. `memory` gives
// the policy, `group` (full) and `recompute` (custom); decisions are run-length
// coded over layers. With `offload`, what the policy keeps and backward reads
// goes to host memory and back, but for the last group of layers: it is read
// again so soon that no copy pays.
// Errors: INVALID_ARGUMENT for a custom name that matches no op or value of the
// graph, listing what there is; INTERNAL for auto, which the planner decides.
absl::StatusOr<Plan> MakePolicyPlan(const Graph& graph,
                                    const MemorySpec& memory);

// Adds the decisions on state that `memory` asks for: MakePolicyPlan does.
void DecideState(const MemorySpec& memory, std::vector<Decision>& decisions);

// Asks `decide` about every activation of the layers, layer by layer, and codes
// the answers as runs of layers.
std::vector<Decision> DecideEach(
    const Graph& graph,
    const std::function<ActivationDecision(int value, int layer)>& decide);

// Layers per group of `sqrt`: ceil(sqrt(num_layers)). Source: Chen et al. 2016,
// section 4.
int SqrtGroup(int num_layers);

// Values (storages) of the layers that backward reads when everything is kept.
std::vector<int> SavedValues(const Graph& graph);

}  // namespace ebb
