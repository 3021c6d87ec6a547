// The forward part of a draft: embedding, one block a segment of layers, and
// the nodes between the layers and the head.
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/program/drafter.h"

namespace ebb {
namespace {

// The head, the last two nodes of the epilogue, is chunk_head.cc's.
constexpr int kNumHeadNodes = 2;

}  // namespace

void Drafter::WriteForwardNode(const Node& node, const Place& place) {
  const OpDef& def = GetOpDef(node.op);
  DraftInstruction instruction =
      Start(node, Phase::kForward, place.layer_in_group);
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    const ValueRef& ref = node.slots[slot];
    if (ref.value < 0) continue;
    const int storage =
        StorageOf(KeyOf(ref, place.block->segment, place.layer_in_group));
    DraftOperand operand = Bind(slot, ref, storage);
    const Role role = def.slots[slot].role;
    operand.written = role == Role::kOutput || role == Role::kAux;
    instruction.operands.push_back(operand);
  }
  SetCosts(instruction, SlotTypes(node), 0);
  place.block->instructions.push_back(std::move(instruction));
}

void Drafter::WriteForward() {
  DraftBlock embedding;
  embedding.name = "embedding";
  DraftInstruction load;
  load.kind = InstructionKind::kLoadBatch;
  load.name = "batch";
  int slot = 0;
  for (int value : {graph_.tokens, graph_.targets}) {
    const ValueRef ref = {value, 0};
    DraftOperand operand =
        Bind(slot++, ref, StorageOf(KeyOf(ref, kOutsideLayers, 0)));
    operand.written = true;
    load.operands.push_back(operand);
  }
  embedding.instructions.push_back(std::move(load));
  for (const Node& node : graph_.prologue) {
    WriteForwardNode(node, {&embedding});
  }
  draft_.microbatch.push_back(std::move(embedding));

  for (int s = 0; s < NumSegments(); ++s) {
    const LayerSegment& segment = draft_.segments[s];
    DraftBlock block;
    block.name = "forward_layer";
    block.segment = s;
    block.first_layer = segment.first_layer;
    block.period = segment.period;
    block.count = segment.count;
    for (int j = 0; j < segment.period; ++j) {
      for (const Node& node : graph_.layer) WriteForwardNode(node, {&block, j});
    }
    draft_.microbatch.push_back(std::move(block));
  }

  DraftBlock final_forward;
  final_forward.name = "final_forward";
  for (size_t n = 0; n + kNumHeadNodes < graph_.epilogue.size(); ++n) {
    WriteForwardNode(graph_.epilogue[n], {&final_forward});
  }
  draft_.microbatch.push_back(std::move(final_forward));
}

}  // namespace ebb
