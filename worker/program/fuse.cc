// Which instructions join a loop or a product, and how many rows a block of a
// loop has.
#include "worker/program/fuse.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "kernels/ops/op_def.h"
#include "kernels/row_loop.h"

namespace ebb {
namespace {

// Bytes of all operands of a block of rows: they shall stay in a core's
// second-level cache beside what the kernels stream past.
constexpr int64_t kSliceBytes = int64_t{256} << 10;
constexpr int64_t kMostSliceRows = 256;
// Less than this is not worth a thread.
constexpr int64_t kFewestSliceBytes = int64_t{64} << 10;
// Fewer rows than this in all are not worth a loop.
constexpr int64_t kFewestRows = 8;

bool IsRowOperand(const DraftInstruction& instruction,
                  const DraftOperand& operand) {
  return HasSlot(GetOpDef(instruction.op).row_slots, operand.slot);
}

int64_t RowBytes(const DraftOperand& operand) {
  return operand.type.bytes() / NumLoopRows(operand.type);
}

// Rows of the instruction's row operands; 0 if it cannot be part of a loop.
int64_t LoopRows(const DraftInstruction& instruction) {
  if (instruction.kind != InstructionKind::kCompute ||
      instruction.phase == Phase::kUpdate || instruction.workspace_bytes > 0) {
    return 0;
  }
  int64_t rows = 0;
  bool writes_rows = false;
  for (const DraftOperand& operand : instruction.operands) {
    if (!IsRowOperand(instruction, operand)) continue;
    const int64_t own = NumLoopRows(operand.type);
    if (rows != 0 && own != rows) return 0;
    rows = own;
    writes_rows = writes_rows || operand.written;
  }
  return writes_rows && rows >= kFewestRows ? rows : 0;
}

// Gradients of params sum over all rows, so what they read must be whole
// before the loop begins.
bool SumsOverRows(const DraftInstruction& instruction) {
  return std::any_of(instruction.operands.begin(), instruction.operands.end(),
                     [&](const DraftOperand& operand) {
                       return operand.written &&
                              !IsRowOperand(instruction, operand);
                     });
}

// Whether the instruction reads what `written` holds, or writes into it.
bool Touches(const DraftInstruction& instruction,
             const std::set<int>& written) {
  return std::any_of(instruction.operands.begin(), instruction.operands.end(),
                     [&](const DraftOperand& operand) {
                       return written.count(operand.storage) != 0;
                     });
}

void AddWritten(const DraftInstruction& instruction, std::set<int>& written) {
  for (const DraftOperand& operand : instruction.operands) {
    if (operand.written) written.insert(operand.storage);
  }
}

// The next instruction that is no drop.
size_t NextWork(const std::vector<DraftInstruction>& list, size_t n) {
  while (n < list.size() && list[n].kind == InstructionKind::kDrop) ++n;
  return n;
}

// Moves instruction `next` to `end`, before the drops between them.
void MoveUp(std::vector<DraftInstruction>& list, size_t end, size_t next) {
  std::rotate(list.begin() + end, list.begin() + next, list.begin() + next + 1);
}

bool IsWholeMatrix(const DraftOperand& operand) {
  return operand.type.rank == 2 && operand.byte_offset == 0 &&
         operand.byte_offset_stride == 0 &&
         operand.row_stride == operand.type.row_elements();
}

// What a tail would be run on: the operand in which the product leaves its
// result. Null if it has none.
const DraftOperand* ResultForTail(const DraftInstruction& product) {
  if (product.kind != InstructionKind::kCompute) return nullptr;
  const OpDef& def = GetOpDef(product.op);
  if (!def.takes_tail) return nullptr;
  for (const DraftOperand& operand : product.operands) {
    const Role role = def.slots[operand.slot].role;
    const Role wanted = product.backward_kernel ? Role::kInput : Role::kOutput;
    if (operand.written && role == wanted && IsWholeMatrix(operand)) {
      return &operand;
    }
  }
  return nullptr;
}

// Whether `next` reads `result`, element by element, and works on nothing but
// matrices of that type.
bool CanBeTail(const DraftInstruction& next, const DraftOperand& result) {
  if (next.kind != InstructionKind::kCompute ||
      !GetOpDef(next.op).is_elementwise || next.workspace_bytes > 0) {
    return false;
  }
  bool reads = false;
  for (const DraftOperand& operand : next.operands) {
    if (!IsRowOperand(next, operand) || operand.type != result.type ||
        !IsWholeMatrix(operand)) {
      return false;
    }
    reads = reads || (!operand.written && operand.storage == result.storage);
  }
  return reads;
}

// Finds the end of the loop that could begin at `first`; the drops within it
// are moved behind it.
size_t GrowLoop(std::vector<DraftInstruction>& list, size_t first) {
  const int64_t rows = LoopRows(list[first]);
  size_t end = first + 1;
  if (rows == 0) return end;
  std::set<int> written;
  AddWritten(list[first], written);
  while (true) {
    const size_t next = NextWork(list, end);
    if (next == list.size() || LoopRows(list[next]) != rows ||
        SumsOverRows(list[next]) || !Touches(list[next], written)) {
      return end;
    }
    AddWritten(list[next], written);
    MoveUp(list, end, next);
    ++end;
  }
}

// Makes the instruction after `first` its tail, if both are made for that.
bool TakeTail(std::vector<DraftInstruction>& list, size_t first) {
  const DraftOperand* const result = ResultForTail(list[first]);
  const size_t next = NextWork(list, first + 1);
  if (result == nullptr || next == list.size() ||
      !CanBeTail(list[next], *result)) {
    return false;
  }
  MoveUp(list, first + 1, next);
  list[first + 1].continues = true;
  return true;
}

// Rows of a block, of which each thread should have one.
int64_t SliceRows(int64_t rows, int64_t row_bytes, int threads) {
  const int64_t share = (rows + threads - 1) / threads;
  return std::clamp<int64_t>(
      std::min(kSliceBytes / row_bytes,
               std::max(share, kFewestSliceBytes / row_bytes)),
      1, kMostSliceRows);
}

}  // namespace

size_t EndOfLoop(const DraftBlock& block, size_t first) {
  size_t end = first + 1;
  while (end < block.instructions.size() && block.instructions[end].continues) {
    ++end;
  }
  return end;
}

void Fuse(Draft& draft, const Backend& backend) {
  if (backend.kind != "cpu") return;
  for (DraftBlock& block : draft.microbatch) {
    std::vector<DraftInstruction>& list = block.instructions;
    for (size_t first = 0; first < list.size();) {
      if (TakeTail(list, first)) {
        first += 2;
        continue;
      }
      const size_t end = GrowLoop(list, first);
      if (end > first + 1) {
        int64_t row_bytes = 0;
        for (size_t i = first; i < end; ++i) {
          list[i].continues = i > first;
          for (const DraftOperand& operand : list[i].operands) {
            if (IsRowOperand(list[i], operand)) row_bytes += RowBytes(operand);
          }
        }
        const int64_t rows = LoopRows(list[first]);
        list[first].loop_rows = rows;
        list[first].slice_rows = SliceRows(rows, row_bytes, backend.threads);
      }
      first = end;
    }
  }
}

void MoveToScratch(DraftBlock& block, const std::vector<bool>& can_move,
                   Draft& draft, const Backend& backend) {
  std::vector<DraftInstruction>& list = block.instructions;
  for (size_t first = 0; first < list.size(); ++first) {
    if (list[first].slice_rows == 0) continue;
    const size_t end = EndOfLoop(block, first);
    std::vector<std::pair<int, int64_t>> moved;  // storage, offset
    int64_t bytes = 0;
    for (size_t i = first; i < end; ++i) {
      for (DraftOperand& operand : list[i].operands) {
        if (!can_move[operand.storage] || !IsRowOperand(list[i], operand)) {
          continue;
        }
        auto found = std::find_if(
            moved.begin(), moved.end(),
            [&](const auto& entry) { return entry.first == operand.storage; });
        if (found == moved.end()) {
          found = moved.insert(moved.end(), {operand.storage, bytes});
          bytes += AlignUp(list[first].slice_rows * RowBytes(operand));
        }
        operand.scratch_offset = found->second;
      }
    }
    for (const auto& [storage, offset] : moved) {
      Storage& gone = draft.storages[storage];
      gone.first_line = gone.last_line = -1;
      for (DraftInstruction& instruction : list) {
        if (instruction.dropped == storage) instruction.dropped = -1;
        for (DraftOperand& operand : instruction.operands) {
          if (operand.storage == storage) operand.storage = -1;
        }
      }
    }
    list[first].thread_scratch_bytes = bytes;
    list[first].workspace_bytes = backend.threads * bytes;
  }
}

}  // namespace ebb
