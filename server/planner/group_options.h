// What a group of layers may keep between forward and backward: the choices
// from which the plan of policy `auto` is put together. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/graph.h"
#include "worker/model/job_spec.h"
#include "worker/program/cost_profile.h"
#include "worker/program/plan.h"
#include "worker/program/policy.h"

namespace ebb {

struct GroupOption {
  // [layer in group][value]
  std::vector<std::vector<ActivationDecision>> decisions;
  // Of what is computed again, and what copies add, one microbatch.
  double seconds = 0;
  int64_t saved_bytes = 0;  // between forward and backward
  // Largest use of the step arena while the group runs, forward or backward,
  // beyond gradients, totals and what groups save. Measured on a program of
  // this group alone.
  int64_t working_bytes = 0;

  int num_layers() const { return static_cast<int>(decisions.size()); }
};

struct GroupOptions {
  std::vector<GroupOption> options;
  // The same of the head, which runs while all groups' saved values lie there.
  int64_t head_bytes = 0;
};

// All choices of one layer that no other beats in both bytes and seconds (up to
// half a percent of the seconds of computing everything again), where a node's
// results are kept or dropped together; and groups of 2 and more layers of
// which the first input alone is kept, computed again as a whole or input by
// input (ActivationDecision::kRecomputeTwice). With
// spec.memory.offload a layer may also offload the results of the nodes that
// are dearest to compute again. A value that `encoding` encodes in all layers
// has its encoded bytes. Depends on no budget.
// Cost: 2^(nodes of a layer) looks, and one lowering a choice.
// Errors: those of LowerTraining.
absl::StatusOr<GroupOptions> FindGroupOptions(const Graph& graph,
                                              const JobSpec& spec,
                                              const Encoding& encoding,
                                              const Backend& backend,
                                              const CostProfile& profile);

}  // namespace ebb
