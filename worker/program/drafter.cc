#include "worker/program/drafter.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace ebb {
namespace {

Address Shifted(const Address& address, int first_layer, int period) {
  return {address.arena, address.base + first_layer * address.stride,
          period * address.stride};
}

}  // namespace

Drafter::Drafter(const Graph& graph, const Backend& backend,
                 std::vector<LayerSegment> segments)
    : graph_(graph), backend_(backend) {
  draft_.graph = &graph;
  draft_.segments = std::move(segments);
  producer_.assign(graph.values.size(), -1);
  for (size_t n = 0; n < graph.layer.size(); ++n) {
    const Node& node = graph.layer[n];
    const OpDef& def = GetOpDef(node.op);
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      const Role role = def.slots[slot].role;
      if (role == Role::kOutput || role == Role::kAux) {
        producer_[node.slots[slot].value] = static_cast<int>(n);
      }
    }
  }
}

void Drafter::PlaceParameters(const StatePlace& state) {
  draft_.parameter_of_value.assign(graph_.values.size(), -1);
  std::array<int64_t, kNumArenas> ends = {};
  int64_t& gradients = ends[static_cast<int>(Arena::kStep)];
  gradients = kNumTotals * kAlignment;  // behind the totals
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    const Value& value = graph_.values[v];
    if (value.kind != ValueKind::kParameter) continue;
    draft_.parameter_of_value[v] = static_cast<int>(draft_.parameters.size());
    ParameterLayout layout;
    layout.name = value.name;
    layout.type = value.type;
    layout.num_layers = value.per_layer ? graph_.num_layers : 0;
    draft_.parameters.push_back(std::move(layout));
  }
  // Outside the layers one after the other; in the layers one record a layer.
  const auto place = [this, &ends](Address ParameterLayout::*member,
                                   Arena arena) {
    int64_t& end = ends[static_cast<int>(arena)];
    const auto bytes = [member, arena](const ParameterLayout& layout) {
      return BytesIn(arena, member == &ParameterLayout::parameter
                                ? layout.type.bytes()
                                : layout.fp32_type().bytes());
    };
    for (ParameterLayout& layout : draft_.parameters) {
      if (layout.num_layers != 0) continue;
      layout.*member = {arena, end, 0};
      end += bytes(layout);
    }
    int64_t record = 0;
    for (ParameterLayout& layout : draft_.parameters) {
      if (layout.num_layers == 0) continue;
      layout.*member = {arena, end + record, 0};
      record += bytes(layout);
    }
    for (ParameterLayout& layout : draft_.parameters) {
      if (layout.num_layers != 0) (layout.*member).stride = record;
    }
    end += record * graph_.num_layers;
  };
  place(&ParameterLayout::parameter, state.parameters);
  // All parameters of a job have one type.
  if (!draft_.parameters.empty() && draft_.parameters[0].has_master()) {
    place(&ParameterLayout::master, state.optimizer);
  } else {
    for (ParameterLayout& layout : draft_.parameters) {
      layout.master = layout.parameter;
    }
  }
  place(&ParameterLayout::first_moment, state.optimizer);
  place(&ParameterLayout::second_moment, state.optimizer);
  place(&ParameterLayout::gradient, Arena::kStep);
  draft_.state_bytes = ends[static_cast<int>(Arena::kState)];
  draft_.host_state_bytes = ends[static_cast<int>(Arena::kHostState)];
  draft_.disk_state_bytes = ends[static_cast<int>(Arena::kDiskState)];
  draft_.fixed_step_bytes = gradients;
}

void Drafter::UseParameters(const Program& training) {
  draft_.parameter_of_value.assign(graph_.values.size(), -1);
  draft_.parameters = training.parameters;
  draft_.state_bytes = training.state_bytes;
  draft_.host_state_bytes = training.host_state_bytes;
  draft_.disk_state_bytes = training.disk_state_bytes;
  draft_.fixed_step_bytes = kNumTotals * kAlignment;
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    for (size_t p = 0; p < training.parameters.size(); ++p) {
      if (training.parameters[p].name == graph_.values[v].name) {
        draft_.parameter_of_value[v] = static_cast<int>(p);
      }
    }
  }
}

std::vector<TensorType> Drafter::SlotTypes(const Node& node) const {
  std::vector<TensorType> types(node.slots.size());
  for (size_t slot = 0; slot < node.slots.size(); ++slot) {
    const int value = node.slots[slot].value;
    if (value >= 0) types[slot] = graph_.values[value].type;
  }
  return types;
}

StorageKey Drafter::KeyOf(const ValueRef& ref, int segment,
                          int layer_in_group) const {
  const int root = graph_.Storage(ref.value);
  StorageKey key;
  key.value = root;
  if (!graph_.values[root].per_layer) return key;
  key.segment = segment;
  key.layer_in_group = layer_in_group;
  if (root != graph_.stream) return key;
  // The stream: outside the layers `shift` is the instance, the first or the
  // last; the layer that ends a group writes the next segment's first input.
  key.layer_in_group = 0;
  if (segment < 0) {
    key.segment = ref.shift == 0 ? 0 : NumSegments();
  } else if (layer_in_group + ref.shift < draft_.segments[segment].period) {
    key.layer_in_group = layer_in_group + ref.shift;
  } else {
    key.segment = segment + 1;
  }
  return key;
}

int Drafter::AddStorage(const StorageKey& key, int64_t bytes,
                        MemoryClass memory_class) {
  Storage storage;
  storage.key = key;
  storage.name = graph_.values[key.value].name;
  if (key.content == Content::kGradient) storage.name += ".grad";
  storage.bytes = AlignUp(bytes);
  storage.memory_class = memory_class;
  return draft_.Add(std::move(storage));
}

int Drafter::ParameterStorage(const StorageKey& key) {
  const ParameterLayout& layout =
      draft_.parameters[draft_.parameter_of_value[key.value]];
  Storage storage;
  storage.key = key;
  storage.name = layout.name;
  Address address;
  switch (key.content) {
    case Content::kGradient:
      address = layout.gradient;
      storage.name += ".grad";
      storage.memory_class = MemoryClass::kGradients;
      storage.home = Home::kGradient;
      break;
    case Content::kMaster:
      address = layout.master;
      storage.name += ".master";
      storage.memory_class = MemoryClass::kOptimizer;
      storage.home = Home::kState;
      break;
    case Content::kFirstMoment:
    case Content::kSecondMoment:
      address = key.content == Content::kFirstMoment ? layout.first_moment
                                                     : layout.second_moment;
      storage.name += key.content == Content::kFirstMoment ? ".first_moment"
                                                           : ".second_moment";
      storage.memory_class = MemoryClass::kOptimizer;
      storage.home = Home::kState;
      break;
    default:
      address = layout.parameter;
      storage.memory_class = MemoryClass::kParameters;
      storage.home = Home::kState;
      break;
  }
  storage.bytes = BytesIn(address.arena, key.content == Content::kValue
                                             ? layout.type.bytes()
                                             : layout.fp32_type().bytes());
  if (key.segment >= 0) {
    const LayerSegment& segment = draft_.segments[key.segment];
    storage.address = Shifted(address, segment.first_layer + key.layer_in_group,
                              segment.period);
  } else {
    storage.address = address;
  }
  return draft_.Add(std::move(storage));
}

int Drafter::StorageOf(const StorageKey& key) {
  if (const int found = draft_.Find(key); found >= 0) return found;
  const Value& value = graph_.values[key.value];
  if (value.kind == ValueKind::kParameter) return ParameterStorage(key);
  MemoryClass memory_class = MemoryClass::kLive;
  if (key.content == Content::kRecomputed)
    memory_class = MemoryClass::kRecompute;
  if (key.content == Content::kPrefetched) memory_class = MemoryClass::kSaved;
  return AddStorage(key, value.type.bytes(), memory_class);
}

DraftOperand Drafter::Bind(int slot, const ValueRef& ref, int storage) const {
  const Value& value = graph_.values[ref.value];
  const Value& root = graph_.values[graph_.Storage(ref.value)];
  DraftOperand operand;
  operand.slot = static_cast<int8_t>(slot);
  operand.storage = storage;
  operand.type = value.type;
  operand.byte_offset = value.view_column * DTypeBytes(value.type.dtype);
  operand.row_stride = root.type.row_elements();
  return operand;
}

DraftInstruction Drafter::Start(const Node& node, Phase phase,
                                int layer_in_group) const {
  DraftInstruction instruction;
  instruction.phase = phase;
  instruction.name = node.name;
  instruction.op = node.op;
  instruction.attrs = node.attrs;
  instruction.layer_in_group = layer_in_group;
  instruction.value_name = node.random_name;
  return instruction;
}

void Drafter::SetCosts(DraftInstruction& instruction,
                       std::span<const TensorType> types,
                       uint32_t bound) const {
  const OpDef& def = GetOpDef(instruction.op);
  const OpAttrs& attrs = instruction.attrs;
  if (def.workspace_bytes != nullptr) {
    instruction.workspace_bytes =
        AlignUp(def.workspace_bytes(attrs, types, bound, backend_));
  }
  if (bound == 0) {
    instruction.flops = static_cast<double>(def.forward_flops(attrs, types));
    if (instruction.phase == Phase::kRecompute) {
      instruction.recompute_flops = instruction.flops;
    }
    return;
  }
  const double inner =
      def.inner_recompute_flops == nullptr
          ? 0.0
          : static_cast<double>(def.inner_recompute_flops(attrs, types));
  instruction.flops =
      static_cast<double>(def.backward_flops(attrs, types, bound)) + inner;
  instruction.recompute_flops = inner;
}

}  // namespace ebb
