// Storage by value and layer, nodes in their order.
#include "worker/runtime/testing/forward_pass.h"

#include <cstring>
#include <utility>

#include "kernels/ops/op_def.h"
#include "kernels/status.h"
#include "worker/model/graph.h"
#include "worker/model/transformer.h"

namespace ebb {
namespace {

class ForwardPass {
 public:
  ForwardPass(const Graph& graph,
              const std::map<std::string, std::vector<float>>& weights,
              Device& device)
      : graph_(graph), weights_(weights), device_(device) {}
  ~ForwardPass() {
    for (const auto& [key, storage] : storages_) {
      device_.Free(storage.first, storage.second);
    }
  }

  void SetTokens(std::span<const int32_t> tokens) {
    std::memcpy(Storage(graph_.tokens, 0), tokens.data(), tokens.size_bytes());
  }

  // `layer` -1: prologue and epilogue, where a shift is the instance itself.
  void Run(const Node& node, int layer) {
    const OpDef& def = GetOpDef(node.op);
    std::vector<Tensor> slots(def.num_slots());
    std::vector<TensorType> types(def.num_slots());
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      const ValueRef& ref = node.slots[slot];
      if (ref.value < 0) continue;
      slots[slot] = View(ref.value, std::max(layer, 0) + ref.shift);
      types[slot] = slots[slot].type;
    }
    OpCall call;
    call.attrs = &node.attrs;
    call.slots = slots.data();
    void* workspace = nullptr;
    if (def.workspace_bytes != nullptr) {
      call.workspace_bytes =
          AlignUp(def.workspace_bytes(node.attrs, types, 0, device_.backend()));
      if (call.workspace_bytes > 0) workspace = Take(call.workspace_bytes);
    }
    call.workspace = workspace;
    const StepScalars scalars;
    call.scalars = &scalars;
    const KernelRow* const kernels =
        FindKernels(device_.kernels(), node.op, DType::kF32);
    EBB_CHECK(kernels != nullptr);
    EBB_CHECK(device_.Launch(kernels->forward, call, nullptr).ok());
    if (workspace != nullptr) device_.Free(workspace, call.workspace_bytes);
  }

  // The first output of a node that has run.
  std::vector<float> Output(const Node& node) {
    const OpDef& def = GetOpDef(node.op);
    int slot = 0;
    while (def.slots[slot].role != Role::kOutput) ++slot;
    const Tensor tensor = View(node.slots[slot].value, 0);
    std::vector<float> values(static_cast<size_t>(tensor.type.num_elements()));
    std::memcpy(values.data(), tensor.data,
                static_cast<size_t>(tensor.type.bytes()));
    return values;
  }

 private:
  void* Take(int64_t bytes) {
    auto memory = device_.Allocate(bytes);
    EBB_CHECK(memory.ok());
    return *memory;
  }

  // Of a value with storage of its own; parameters are filled.
  void* Storage(int index, int instance) {
    const Value& value = graph_.values[index];
    const auto key = std::pair(index, value.per_layer ? instance : 0);
    const auto found = storages_.find(key);
    if (found != storages_.end()) return found->second.first;
    const int64_t bytes = AlignUp(value.type.bytes());
    void* const memory = Take(bytes);
    if (value.kind == ValueKind::kParameter) {
      const std::vector<float>& values =
          weights_.at(InstanceName(value.name, key.second));
      EBB_CHECK(std::ssize(values) == value.type.num_elements());
      std::memcpy(memory, values.data(),
                  static_cast<size_t>(value.type.bytes()));
    }
    storages_[key] = {memory, bytes};
    return memory;
  }

  Tensor View(int index, int instance) {
    const Value& value = graph_.values[index];
    const Value& root = graph_.values[graph_.Storage(index)];
    Tensor tensor;
    tensor.data = static_cast<char*>(Storage(graph_.Storage(index), instance)) +
                  value.view_column * DTypeBytes(value.type.dtype);
    tensor.type = value.type;
    tensor.row_stride = root.type.row_elements();
    return tensor;
  }

  const Graph& graph_;
  const std::map<std::string, std::vector<float>>& weights_;
  Device& device_;
  // By value and layer: memory and its bytes.
  std::map<std::pair<int, int>, std::pair<void*, int64_t>> storages_;
};

}  // namespace

std::vector<float> ForwardLogits(
    const ModelSpec& model,
    const std::map<std::string, std::vector<float>>& weights,
    std::span<const int32_t> tokens, Device& device) {
  const int64_t length = std::ssize(tokens);
  const auto graph = BuildTransformer(model, 1, length, length,
                                      /*training=*/false);
  EBB_CHECK(graph.ok());
  ForwardPass pass(*graph, weights, device);
  pass.SetTokens(tokens);
  for (const Node& node : graph->prologue) pass.Run(node, -1);
  for (int layer = 0; layer < graph->num_layers; ++layer) {
    for (const Node& node : graph->layer) pass.Run(node, layer);
  }
  // All but the loss; the head's linear makes the logits.
  for (size_t n = 0; n + 1 < graph->epilogue.size(); ++n) {
    pass.Run(graph->epilogue[n], -1);
  }
  return pass.Output(graph->epilogue[graph->epilogue.size() - 2]);
}

}  // namespace ebb
