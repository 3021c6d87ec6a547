#include "worker/program/draft_edit.h"

#include <iterator>

#include "worker/program/fuse.h"

namespace ebb {

void Insertions::Add(size_t at, Order order, DraftInstruction instruction) {
  auto& list = lists_[{at, order}];
  if (order == Order::kWait) {
    for (DraftInstruction& other : list) {
      if (other.iterations != instruction.iterations ||
          other.group != instruction.group) {
        continue;
      }
      other.operands.insert(other.operands.end(), instruction.operands.begin(),
                            instruction.operands.end());
      other.frees.insert(other.frees.end(), instruction.frees.begin(),
                         instruction.frees.end());
      return;
    }
  }
  list.push_back(std::move(instruction));
}

void Insertions::ApplyTo(DraftBlock& block) && {
  if (lists_.empty()) return;
  std::vector<DraftInstruction> instructions;
  auto next = lists_.begin();
  for (size_t i = 0; i <= block.instructions.size(); ++i) {
    for (; next != lists_.end() && next->first.first == i; ++next) {
      std::move(next->second.begin(), next->second.end(),
                std::back_inserter(instructions));
    }
    if (i < block.instructions.size()) {
      instructions.push_back(std::move(block.instructions[i]));
    }
  }
  block.instructions = std::move(instructions);
}

Use FindUse(const DraftBlock& block, int storage, bool written_only) {
  Use use;
  if (storage < 0) return use;
  for (size_t i = 0; i < block.instructions.size();) {
    const size_t end = EndOfLoop(block, i);
    bool is_used = false;
    for (size_t n = i; n < end; ++n) {
      for (const DraftOperand& operand : block.instructions[n].operands) {
        is_used = is_used || (operand.storage == storage &&
                              (operand.written || !written_only));
      }
    }
    if (is_used) {
      if (!use.found) use.begin = i;
      use.end = end;
      use.found = true;
    }
    i = end;
  }
  return use;
}

DraftOperand BindWhole(int slot, int storage, const TensorType& type,
                       bool written) {
  DraftOperand operand;
  operand.slot = static_cast<int8_t>(slot);
  operand.storage = storage;
  operand.type = type;
  operand.row_stride = type.row_elements();
  operand.written = written;
  return operand;
}

}  // namespace ebb
