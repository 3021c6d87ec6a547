// The backward part of a draft: the gradients of every node in reverse graph
// order, and before each one the values that it reads and that were not kept,
// computed again as late as possible.
//
// A value is computed again at most once a group of layers: it stays until the
// last instruction of the group that reads it.
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/add.h"
#include "kernels/status.h"
#include "worker/program/drafter.h"

namespace ebb {
namespace {

constexpr size_t kNumHeadNodes = 2;

int FirstOutput(const OpDef& def) {
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    if (def.slots[slot].role == Role::kOutput) return slot;
  }
  return -1;
}

StorageKey WithContent(StorageKey key, Content content) {
  key.content = content;
  return key;
}

// Puts an instruction that frees each of `storages` behind the last one that
// uses it.
void InsertDrops(DraftBlock& block, const Draft& draft,
                 const std::vector<int>& storages) {
  std::unordered_map<int, size_t> last_use;
  for (size_t i = 0; i < block.instructions.size(); ++i) {
    for (const DraftOperand& operand : block.instructions[i].operands) {
      last_use[operand.storage] = i;
    }
  }
  std::vector<std::vector<int>> dropped(block.instructions.size());
  for (int storage : storages) {
    const auto used = last_use.find(storage);
    if (used != last_use.end()) dropped[used->second].push_back(storage);
  }
  std::vector<DraftInstruction> instructions;
  instructions.reserve(block.instructions.size() + storages.size());
  for (size_t i = 0; i < block.instructions.size(); ++i) {
    instructions.push_back(std::move(block.instructions[i]));
    // The newest value first.
    for (size_t d = dropped[i].size(); d-- > 0;) {
      const Storage& storage = draft.storages[dropped[i][d]];
      DraftInstruction drop;
      drop.kind = InstructionKind::kDrop;
      drop.name = storage.name;
      drop.layer_in_group = storage.key.layer_in_group;
      drop.dropped = dropped[i][d];
      instructions.push_back(std::move(drop));
    }
  }
  block.instructions = std::move(instructions);
}

}  // namespace

ActivationDecision Drafter::DecisionOn(const StorageKey& key) const {
  if (key.segment < 0 || key.segment >= NumSegments()) {
    return ActivationDecision::kKeep;
  }
  return draft_.segments[key.segment].decision(key.layer_in_group, key.value);
}

StorageKey Drafter::RecomputedKey(StorageKey key, const Place& place) const {
  const bool twice = DecisionOn(key) == ActivationDecision::kRecomputeTwice;
  key.content = Content::kRecomputed;
  if (place.on_the_way && twice) key.version = kOnTheWay;
  return key;
}

int Drafter::MakeResident(const ValueRef& ref, const Place& place) {
  const StorageKey key = KeyOf(ref, place.block->segment, place.layer_in_group);
  const Value& value = graph_.values[key.value];
  if (value.kind != ValueKind::kActivation) return StorageOf(key);
  if (draft_.FormatOf(key) != DType::kNone) {
    return StorageOf(WithContent(key, Content::kDecoded));
  }
  if (IsOffload(DecisionOn(key))) {
    return StorageOf(WithContent(key, Content::kPrefetched));
  }
  if (IsKept(key)) return StorageOf(key);
  const StorageKey recomputed = RecomputedKey(key, place);
  if (const int found = draft_.Find(recomputed); found >= 0) return found;
  Place maker = place;
  if (key.value == graph_.stream) {
    // The input of a layer inside the group is made by the layer before.
    maker.layer_in_group = key.layer_in_group - 1;
    maker.on_the_way = true;
  }
  WriteRecompute(graph_.layer[producer_[key.value]], maker);
  return draft_.Find(recomputed);
}

void Drafter::WriteRecompute(const Node& node, const Place& place) {
  const OpDef& def = GetOpDef(node.op);
  DraftInstruction instruction =
      Start(node, Phase::kRecompute, place.layer_in_group);
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    const ValueRef& ref = node.slots[slot];
    if (ref.value < 0) continue;
    const Role role = def.slots[slot].role;
    const bool written = role == Role::kOutput || role == Role::kAux;
    int storage;
    if (!written) {
      storage = MakeResident(ref, place);
    } else {
      StorageKey key = KeyOf(ref, place.block->segment, place.layer_in_group);
      const StorageKey recomputed = RecomputedKey(key, place);
      if (IsKept(key) || draft_.Find(recomputed) >= 0) {
        // What is there beside a dropped output is computed into scratch.
        key.content = Content::kScratch;
        key.version = ++num_versions_;
      } else {
        key = recomputed;
      }
      storage = AddStorage(key, graph_.values[key.value].type.bytes(),
                           MemoryClass::kRecompute);
    }
    DraftOperand operand = Bind(slot, ref, storage);
    operand.written = written;
    instruction.operands.push_back(operand);
  }
  SetCosts(instruction, SlotTypes(node), 0);
  place.block->instructions.push_back(std::move(instruction));
}

int Drafter::NewGradient(const ValueRef& ref, const StorageKey& key,
                         bool* is_partial) {
  StorageKey gradient_key = WithContent(key, Content::kGradient);
  const bool is_view = graph_.values[ref.value].view_of >= 0;
  *is_partial = !is_view && gradients_.count(key) != 0;
  // Columns of one gradient, each written by the reader of that view.
  if (is_view && gradients_.count(key) != 0) return gradients_[key];
  if (*is_partial) gradient_key.version = ++num_versions_;
  return AddStorage(gradient_key, graph_.values[key.value].type.bytes(),
                    MemoryClass::kLive);
}

void Drafter::Contribute(const StorageKey& key, int storage,
                         const Place& place) {
  auto [it, is_first] = gradients_.emplace(key, storage);
  if (is_first || it->second == storage) return;
  const Value& value = graph_.values[key.value];
  StorageKey sum_key = WithContent(key, Content::kGradient);
  sum_key.version = ++num_versions_;
  const int sum = AddStorage(sum_key, value.type.bytes(), MemoryClass::kLive);
  DraftInstruction instruction;
  instruction.phase = Phase::kBackward;
  instruction.name = absl::StrCat(value.name, ".grad_add");
  instruction.op = Op::kAdd;
  instruction.layer_in_group = key.layer_in_group;
  const std::vector<TensorType> types(add::kNumSlots, value.type);
  instruction.operands = {BindWhole(add::kA, it->second, value.type, false),
                          BindWhole(add::kB, storage, value.type, false),
                          BindWhole(add::kY, sum, value.type, true)};
  SetCosts(instruction, types, 0);
  place.block->instructions.push_back(std::move(instruction));
  it->second = sum;
}

void Drafter::WriteBackwardNode(const Node& node, const Place& place) {
  const OpDef& def = GetOpDef(node.op);
  const int output = FirstOutput(def);
  const int segment = place.block->segment;
  const StorageKey output_key =
      KeyOf(node.slots[output], segment, place.layer_in_group);
  const auto output_gradient = gradients_.find(output_key);
  if (output_gradient == gradients_.end()) return;  // nobody reads the output
  const int dy = output_gradient->second;

  uint32_t bound = 0;
  uint32_t reads = 0;
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    const Role role = def.slots[slot].role;
    if (node.slots[slot].value < 0 || def.slots[slot].grad_passes_through ||
        (role != Role::kInput && role != Role::kParam)) {
      continue;
    }
    bound |= Reads(slot);
    reads |= def.slots[slot].grad_reads;
  }

  if (bound != 0) {
    DraftInstruction instruction =
        Start(node, Phase::kBackward, place.layer_in_group);
    instruction.backward_kernel = true;
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      const ValueRef& ref = node.slots[slot];
      if ((reads & Reads(slot)) == 0 || ref.value < 0) continue;
      instruction.operands.push_back(Bind(slot, ref, MakeResident(ref, place)));
    }
    DraftOperand dy_operand = Bind(output, node.slots[output], dy);
    dy_operand.gradient = true;
    instruction.operands.push_back(dy_operand);

    struct Contribution {
      StorageKey key;
      int storage;
    };
    std::vector<Contribution> contributions;
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      if ((bound & Reads(slot)) == 0) continue;
      const ValueRef& ref = node.slots[slot];
      const StorageKey key = KeyOf(ref, segment, place.layer_in_group);
      int storage;
      if (def.slots[slot].role == Role::kParam) {
        storage = StorageOf(WithContent(key, Content::kGradient));
      } else {
        bool is_partial = false;
        storage = NewGradient(ref, key, &is_partial);
        if (is_partial) {
          contributions.push_back({key, storage});
        } else {
          gradients_[key] = storage;
        }
      }
      DraftOperand operand = Bind(slot, ref, storage);
      operand.type = GradientType(def.slots[slot].role, operand.type);
      operand.gradient = true;
      operand.written = true;
      instruction.operands.push_back(operand);
    }
    SetCosts(instruction, SlotTypes(node), bound);
    place.block->instructions.push_back(std::move(instruction));
    for (const Contribution& c : contributions) {
      Contribute(c.key, c.storage, place);
    }
  }

  for (int slot = 0; slot < def.num_slots(); ++slot) {
    if (node.slots[slot].value < 0 || !def.slots[slot].grad_passes_through) {
      continue;
    }
    Contribute(KeyOf(node.slots[slot], segment, place.layer_in_group), dy,
               place);
  }
}

void Drafter::WriteBackward() {
  DraftBlock final_backward;
  final_backward.name = "final_backward";
  for (size_t n = graph_.epilogue.size() - kNumHeadNodes; n-- > 0;) {
    WriteBackwardNode(graph_.epilogue[n], {&final_backward});
  }
  draft_.microbatch.push_back(std::move(final_backward));

  for (int s = NumSegments() - 1; s >= 0; --s) {
    const LayerSegment& segment = draft_.segments[s];
    DraftBlock block;
    block.name = "backward_layer";
    block.segment = s;
    block.first_layer = segment.first_layer;
    block.period = segment.period;
    block.count = segment.count;
    block.descending = true;
    for (int j = segment.period - 1; j >= 0; --j) {
      for (size_t n = graph_.layer.size(); n-- > 0;) {
        WriteBackwardNode(graph_.layer[n], {&block, j});
      }
    }
    draft_.microbatch.push_back(std::move(block));
  }

  DraftBlock embedding_backward;
  embedding_backward.name = "embedding_backward";
  for (size_t n = graph_.prologue.size(); n-- > 0;) {
    WriteBackwardNode(graph_.prologue[n], {&embedding_backward});
  }
  draft_.microbatch.push_back(std::move(embedding_backward));

  // What backward computes again is dropped behind its last use in forward.
  std::vector<std::vector<int>> dropped(NumSegments());
  for (size_t s = 0; s < draft_.storages.size(); ++s) {
    const StorageKey& key = draft_.storages[s].key;
    if (key.content != Content::kValue || key.segment < 0 ||
        key.segment >= NumSegments()) {
      continue;
    }
    StorageKey recomputed = WithContent(key, Content::kRecomputed);
    bool is_dropped = draft_.Find(recomputed) >= 0;
    recomputed.version = kOnTheWay;
    is_dropped = is_dropped || draft_.Find(recomputed) >= 0;
    if (is_dropped) dropped[key.segment].push_back(static_cast<int>(s));
  }
  for (DraftBlock& block : draft_.microbatch) {
    if (block.name != "forward_layer") continue;
    InsertDrops(block, draft_, dropped[block.segment]);
  }
}

}  // namespace ebb
