// What no plan of a job can do better. Pure.
#pragma once

#include <cstdint>

#include "worker/model/graph.h"
#include "worker/model/job_spec.h"
#include "worker/program/cost_profile.h"
#include "worker/program/policy.h"

namespace ebb {

// Seconds that one microbatch spends at least on computing values again.
//
// Between the last layer's forward pass and its backward pass the head runs.
// All that backward reads in the layers is then held, or is made again later,
// from what is held. Held are at most `room` bytes: what the step arena of a
// plan within the budget leaves beside gradients, totals and what the head
// works on. The least seconds of making the rest again are a minimum over all
// such sets, whatever else a plan does: rebuild_bound.h bounds it. With
// offload values may also wait elsewhere, which costs at least what their
// copies take from the ops beside them. What may be encoded takes its encoded
// bytes.
// Cost: some minimum cuts over layers x values points.
double LeastRecomputeSeconds(const Graph& graph, const CostProfile& profile,
                             int64_t room, Offload offload,
                             const Encoding& encoding);

}  // namespace ebb
