#include "server/planner/job_bound.h"

#include <algorithm>
#include <vector>

#include "kernels/ops/op_def.h"
#include "server/planner/rebuild_bound.h"

namespace ebb {

double LeastRecomputeSeconds(const Graph& graph, const CostProfile& profile,
                             int64_t room, Offload offload,
                             const Encoding& encoding) {
  const auto elsewhere = [&](int64_t bytes) {
    return offload == Offload::kNone
               ? RebuildNode::kCannotRun
               : 2 * profile.RateTo(offload).share *
                     static_cast<double>(bytes) /
                     profile.RateTo(offload).bytes_per_second;
  };
  std::vector<bool> read(graph.values.size(), false);
  for (const int value : SavedValues(graph)) read[value] = true;
  std::vector<RebuildNode> nodes;
  // The first layer's input; making it again would take the embedding.
  RebuildNode input;
  // The smaller of the two, since what is not read as it is is not encoded.
  const auto least_bytes = [&](int value, int layer) {
    return std::min(AlignUp(graph.values[value].type.bytes()),
                    encoding.KeptBytes(graph, value, layer));
  };
  input.bytes = least_bytes(graph.stream, 0);
  input.elsewhere_seconds = elsewhere(input.bytes);
  input.wanted = read[graph.stream];
  for (const Node& node : graph.prologue) {
    input.seconds += NodeSeconds(graph, node, profile);
  }
  nodes.push_back(input);
  int stream = 0;  // the node that makes this layer's input
  std::vector<int> maker(graph.values.size(), -1);  // of this layer's values
  for (int layer = 0; layer < graph.num_layers; ++layer) {
    int next_stream = -1;
    for (const Node& node : graph.layer) {
      const OpDef& def = GetOpDef(node.op);
      // The run, and behind it a node for each of its results.
      const int run = static_cast<int>(nodes.size());
      nodes.emplace_back();
      nodes[run].seconds = NodeSeconds(graph, node, profile);
      nodes[run].bytes = RebuildNode::kCannotHold;
      for (int slot = 0; slot < def.num_slots(); ++slot) {
        const ValueRef& ref = node.slots[slot];
        if (ref.value < 0) continue;
        const int value = graph.Storage(ref.value);
        if (graph.values[value].kind != ValueKind::kActivation) continue;
        const Role role = def.slots[slot].role;
        if (role != Role::kOutput && role != Role::kAux) {
          if (value == graph.stream) {
            nodes[run].inputs.push_back(stream);
          } else if (maker[value] >= 0) {
            nodes[run].inputs.push_back(maker[value]);
          }
          continue;
        }
        RebuildNode result;
        // The stream that a layer makes is the next one's input.
        const int reader = value == graph.stream ? layer + 1 : layer;
        result.bytes = reader < graph.num_layers
                           ? least_bytes(value, reader)
                           : AlignUp(graph.values[value].type.bytes());
        result.elsewhere_seconds = elsewhere(result.bytes);
        result.inputs = {run};
        result.wanted = read[value];
        if (value == graph.stream) {
          next_stream = static_cast<int>(nodes.size());
          // What enters no layer is the epilogue's, and counts with the head.
          result.wanted = result.wanted && layer + 1 < graph.num_layers;
        } else {
          maker[value] = static_cast<int>(nodes.size());
        }
        nodes.push_back(std::move(result));
      }
    }
    stream = next_stream;
  }
  return LeastRebuildSeconds(nodes, room);
}

}  // namespace ebb
