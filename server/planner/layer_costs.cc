#include "server/planner/layer_costs.h"

#include <algorithm>

#include "kernels/ops/op_def.h"
#include "kernels/status.h"

namespace ebb {
namespace {

// Nodes of a layer that are looked at for offloading.
constexpr size_t kMostOffloaded = 6;

double ForwardFlops(const Graph& graph, const Node& node) {
  std::vector<TensorType> types;
  for (const ValueRef& ref : node.slots) {
    types.push_back(ref.value < 0 ? TensorType()
                                  : graph.values[ref.value].type);
  }
  return static_cast<double>(
      GetOpDef(node.op).forward_flops(node.attrs, types));
}

// In the layer that takes most.
int64_t MostKeptBytes(const Graph& graph, int value, const Encoding& encoding) {
  int64_t bytes = 0;
  for (int layer = 0; layer < graph.num_layers; ++layer) {
    bytes = std::max(bytes, encoding.KeptBytes(graph, value, layer));
  }
  return bytes;
}

}  // namespace

LayerCosts::LayerCosts(const Graph& graph, const CostProfile& profile,
                       const Encoding& encoding)
    : maker_(graph.values.size(), -1),
      stream_bytes_(MostKeptBytes(graph, graph.stream, encoding)) {
  EBB_CHECK(graph.layer.size() <= kMostLayerNodes);
  std::vector<bool> read(graph.values.size(), false);
  for (const int value : SavedValues(graph)) read[value] = true;
  for (size_t n = 0; n < graph.layer.size(); ++n) {
    const Node& node = graph.layer[n];
    const OpDef& def = GetOpDef(node.op);
    LayerNode own;
    own.seconds = NodeSeconds(graph, node, profile);
    own.flops = ForwardFlops(graph, node);
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      const ValueRef& ref = node.slots[slot];
      if (ref.value < 0) continue;
      const int value = graph.Storage(ref.value);
      const Role role = def.slots[slot].role;
      if (role != Role::kOutput && role != Role::kAux) {
        if (maker_[value] >= 0 && value != graph.stream) {
          own.inputs |= Bit(maker_[value]);
        }
        continue;
      }
      maker_[value] = static_cast<int>(n);
      if (value == graph.stream) {
        own.makes_stream = true;
        continue;
      }
      const int64_t bytes = MostKeptBytes(graph, value, encoding);
      own.bytes += bytes;
      if (read[value]) own.read_bytes += bytes;
    }
    nodes_.push_back(own);
  }
}

double LayerCosts::forward_seconds() const {
  double seconds = 0;
  for (const LayerNode& node : nodes_) seconds += node.seconds;
  return seconds;
}

NodeSet LayerCosts::Choosable() const {
  NodeSet nodes = 0;
  for (int n = 0; n < num_nodes(); ++n) {
    if (nodes_[n].bytes > 0) nodes |= Bit(n);
  }
  return nodes;
}

LayerCosts::Cost LayerCosts::CostOf(NodeSet kept, bool backward,
                                    bool next_input) const {
  Cost cost;
  NodeSet wanted = 0;
  for (int n = num_nodes() - 1; n >= 0; --n) {
    const LayerNode& node = nodes_[n];
    const bool read_back = backward && node.read_bytes > 0;
    if ((wanted & Bit(n)) == 0 && !read_back &&
        !(next_input && node.makes_stream)) {
      continue;
    }
    if ((kept & Bit(n)) != 0 && !node.makes_stream) {
      cost.used |= Bit(n);
      cost.bytes += HeldBytes(n, wanted);
      continue;
    }
    cost.seconds += node.seconds;
    cost.flops += node.flops;
    wanted |= node.inputs;
  }
  cost.wanted = wanted;
  return cost;
}

int64_t LayerCosts::BytesOf(const Cost& cost, NodeSet nodes) const {
  int64_t bytes = 0;
  for (int n = 0; n < num_nodes(); ++n) {
    if ((nodes & Bit(n)) != 0) bytes += HeldBytes(n, cost.wanted);
  }
  return bytes;
}

LayerCosts::Price LayerCosts::PriceOf(int node, NodeSet kept) const {
  const Cost with = CostOf(kept | Bit(node), true, false);
  const Cost without = CostOf(kept & ~Bit(node), true, false);
  return {.seconds = without.seconds - with.seconds,
          .flops = without.flops - with.flops,
          .bytes = with.bytes - without.bytes};
}

NodeSet LayerCosts::DearestNodes(const CopyRate& rate) const {
  std::vector<int> order;
  for (int n = 0; n < num_nodes(); ++n) {
    const LayerNode& node = nodes_[n];
    CopyTime copies;
    copies.Add(rate, 2 * static_cast<double>(node.bytes));
    if (node.bytes > 0 && node.seconds > copies.taken) order.push_back(n);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return nodes_[a].seconds * static_cast<double>(nodes_[b].bytes) >
           nodes_[b].seconds * static_cast<double>(nodes_[a].bytes);
  });
  if (order.size() > kMostOffloaded) order.resize(kMostOffloaded);
  NodeSet nodes = 0;
  for (const int n : order) nodes |= Bit(n);
  return nodes;
}

}  // namespace ebb
