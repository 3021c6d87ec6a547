// The named recompute policies as plans: which values of which layers are kept.
// Design section 4 has the table; costs and reasons are the planner's.
#pragma once

#include <algorithm>
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
// again so soon that no copy pays. With `encode`, what is kept or offloaded and
// named there is encoded.
// Errors: INVALID_ARGUMENT for a custom name that matches no op or value of the
// graph, listing what there is; those of Encoding; INTERNAL for auto, which the
// planner decides.
absl::StatusOr<Plan> MakePolicyPlan(const Graph& graph,
                                    const MemorySpec& memory);

// Adds the decisions on state that `memory` asks for: MakePolicyPlan does.
void DecideState(const MemorySpec& memory, std::vector<Decision>& decisions);

// Bytes of a value that is encoded, codes and scales each aligned.
int64_t EncodedBytes(const TensorType& type, DType format);

// Says of a value of the layers, by its index, and a layer in what elements a
// plan that keeps the value keeps it: memory.encode.
class Encoding {
 public:
  // Errors: INVALID_ARGUMENT, naming memory.encode.values, for a name that
  // matches nothing in the layers, or nothing that can be encoded.
  static absl::StatusOr<Encoding> Create(const Graph& graph,
                                         const EncodeSpec& encode);

  bool encodes() const { return !formats_.empty(); }
  // kNone: as it is. Layers behind the last are as the last.
  DType FormatOf(int value, int layer) const {
    if (formats_.empty()) return DType::kNone;
    const auto last = static_cast<int>(formats_.size()) - 1;
    return formats_[std::min(layer, last)][value];
  }
  // Bytes of the value as it is kept.
  int64_t KeptBytes(const Graph& graph, int value, int layer) const;

  // Marks the values that are encoded among those that `decisions` keeps or
  // offloads for backward to read.
  std::vector<Decision> Apply(const Graph& graph,
                              const std::vector<Decision>& decisions) const;

 private:
  std::vector<std::vector<DType>> formats_;  // [layer][value]; empty: nothing
};

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
