// What keeping and dropping results costs within one layer: seconds and FLOPs
// that run again against bytes that stay. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/model/graph.h"
#include "worker/program/cost_profile.h"
#include "worker/program/policy.h"

namespace ebb {

// Nodes of a layer as bits, by their index in Graph::layer.
using NodeSet = uint64_t;
constexpr int kMostLayerNodes = 63;

class LayerCosts {
 public:
  // The layer has at most kMostLayerNodes nodes. Values have the bytes in which
  // they are kept: encoded, in the layer that takes most.
  LayerCosts(const Graph& graph, const CostProfile& profile,
             const Encoding& encoding);

  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int64_t stream_bytes() const { return stream_bytes_; }
  // The node that makes the value, -1: none.
  int maker(int value) const { return maker_[value]; }
  double forward_seconds() const;
  // The nodes that a choice may keep: all that make something but the stream.
  NodeSet Choosable() const;

  // One microbatch.
  struct Cost {
    double seconds = 0;  // of the nodes that run again
    double flops = 0;
    int64_t bytes = 0;   // of what is kept and read
    NodeSet used = 0;    // kept nodes that somebody reads
    NodeSet wanted = 0;  // nodes that a running one reads
  };
  // Of a layer that keeps the results of the nodes `kept`, for its own backward
  // pass and, `next_input`, to make the next layer's input.
  Cost CostOf(NodeSet kept, bool backward, bool next_input) const;
  // Of cost.bytes, those of these nodes' results.
  int64_t BytesOf(const Cost& cost, NodeSet nodes) const;

  // What keeping the results of `node` saves, and what it takes, beside the
  // others of `kept`: with what only they need, or free.
  struct Price {
    double seconds = 0;
    double flops = 0;
    int64_t bytes = 0;

    double seconds_per_mib() const {
      return seconds / static_cast<double>(bytes) * (1 << 20);
    }
  };
  Price PriceOf(int node, NodeSet kept) const;

  // The nodes with the most seconds a byte, a few, that take longer than their
  // copies do: what offloading could pay for.
  NodeSet DearestNodes(const CopyRate& rate) const;

 private:
  // One node as keeping and recomputing see it.
  struct LayerNode {
    double seconds = 0;
    double flops = 0;
    int64_t bytes = 0;          // of the results that may be kept
    int64_t read_bytes = 0;     // of these, what backward reads
    bool makes_stream = false;  // the next layer's input
    NodeSet inputs = 0;         // nodes whose results it reads
  };

  static NodeSet Bit(int node) { return NodeSet{1} << node; }
  // What holding the results takes: all of them where a node that runs again
  // reads them, else what backward reads.
  int64_t HeldBytes(int node, NodeSet wanted) const {
    return (wanted & Bit(node)) != 0 ? nodes_[node].bytes
                                     : nodes_[node].read_bytes;
  }

  std::vector<int> maker_;  // [value]
  std::vector<LayerNode> nodes_;
  int64_t stream_bytes_ = 0;
};

}  // namespace ebb
