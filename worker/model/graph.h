// What is computed on one microbatch: values and nodes, as plain data. The
// layers are one section with a repeat count, so a graph of 96 layers is as
// small as one of 2. A graph knows nothing of recompute, memory or devices.
//
// Values of the layer section are named with a star ("L*.mlp_fc.y"); in layer
// 3 the value's name is "L3.mlp_fc.y". The stream that runs through the layers
// is one value, "L*.input", with num_layers + 1 instances: instance l enters
// layer l, the prologue writes instance 0, layer l writes instance l + 1 and
// the epilogue reads instance num_layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/op_call.h"
#include "kernels/ops/op.h"
#include "kernels/tensor.h"
#include "worker/model/job_spec.h"

namespace ebb {

enum class ValueKind : uint8_t {
  kBatch,       // filled from data for every microbatch: tokens, targets
  kParameter,   // lives for ever, has gradient and moments
  kActivation,  // made by a node of the graph
};

enum class Init : uint8_t { kZeros, kOnes, kNormal };

struct Value {
  std::string name;
  TensorType type;
  ValueKind kind = ValueKind::kActivation;
  bool per_layer = false;

  // Parameters: initial distribution, and whether weight decay applies.
  Init init = Init::kZeros;
  double init_std = 0;
  bool decays = false;

  // A view is a column range of another value of equal rows (q within the
  // output of the qkv product): it has no storage and no producer of its own,
  // and its gradient is the same range of the other's gradient.
  int view_of = -1;         // value index, itself no view
  int64_t view_column = 0;  // first element within a row
};

// A value as a node sees it. Within a layer, shift 0 is this layer's instance
// and shift 1 the next one's (the stream that the layer writes). In prologue
// and epilogue `shift` is the instance itself for per-layer values.
struct ValueRef {
  int value = -1;  // -1: slot not bound
  int shift = 0;
};

struct Node {
  std::string name;  // "L*.mlp_fc"
  Op op;
  OpAttrs attrs;
  std::vector<ValueRef> slots;  // by the op's slot enum
  std::string random_name;      // what keys the op's draws (ValueKey); empty:
                                // it draws nothing
};

struct Graph {
  std::vector<Value> values;
  std::vector<Node> prologue;
  std::vector<Node> layer;
  std::vector<Node> epilogue;  // the last two nodes are the head: linear, then
                               // cross_entropy, which the program chunks
  int num_layers = 0;
  int stream = -1;   // value indices
  int tokens = -1;   // [N] i32
  int targets = -1;  // [N] i32
  int losses = -1;   // [N] f32, output of cross_entropy
  int64_t micro_batch = 0;
  int64_t seq_len = 0;

  // Index of the value with storage: the viewed one, or `value` itself.
  int Storage(int value) const {
    return values[value].view_of >= 0 ? values[value].view_of : value;
  }
  // Elements of all parameters, all layers.
  int64_t num_parameters() const;
  // A hash of everything above: equal graphs, equal numbers.
  uint64_t Fingerprint() const;
};

// Returns "L3.mlp_fc.y" for ("L*.mlp_fc.y", 3); the name itself without a star.
std::string InstanceName(absl::string_view name, int layer);

// Key of a value's random draws: initialisation and dropout. Depends on name
// and layer alone, so neither layout nor policy changes a draw.
uint64_t ValueKey(absl::string_view name, int layer);

}  // namespace ebb
