#include "worker/program/liveness.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/op_def.h"
#include "worker/program/fuse.h"

namespace ebb {
namespace {

class Analysis {
 public:
  Analysis(Draft& draft, bool training, const Backend& backend)
      : draft_(draft), training_(training), backend_(backend) {}

  absl::Status Run() {
    NumberLines();
    ScanUses();
    KeepRecords();
    ExtendAcrossLoops();
    for (DraftBlock& block : draft_.microbatch) ChooseInPlace(block);
    for (DraftBlock& block : draft_.microbatch) SettleLoops(block);
    ReserveStaged();
    if (absl::Status s = CheckStream(); !s.ok()) return s;
    WriteLists();
    return absl::OkStatus();
  }

 private:
  bool IsPlaced(const Storage& storage) const {
    return storage.home == Home::kTemporary || storage.home == Home::kRecord ||
           storage.home == Home::kStaged;
  }

  void NumberLines() {
    for (DraftBlock& block : draft_.microbatch) {
      block.first_line = static_cast<int>(lines_.size());
      for (DraftInstruction& instruction : block.instructions) {
        lines_.push_back(&instruction);
      }
    }
  }

  int EndLine(const DraftBlock& block) const {  // one past the last
    return block.first_line + static_cast<int>(block.instructions.size());
  }

  // Of the last instruction that runs in every iteration.
  static int LastLine(const DraftBlock& block) {
    size_t n = block.instructions.size();
    while (block.instructions[n - 1].iterations != Iterations::kAll) --n;
    return block.first_line + static_cast<int>(n) - 1;
  }

  void ScanUses() {
    last_use_.assign(draft_.storages.size(), -1);
    for (int line = 0; line < static_cast<int>(lines_.size()); ++line) {
      const DraftInstruction& instruction = *lines_[line];
      if (IsCopy(instruction.kind)) continue;  // ReserveStaged
      const bool backward = instruction.phase == Phase::kBackward ||
                            instruction.phase == Phase::kRecompute;
      for (const DraftOperand& operand : instruction.operands) {
        Storage& storage = draft_.storages[operand.storage];
        if (!IsPlaced(storage)) continue;
        if (storage.first_line < 0) storage.first_line = line;
        storage.last_line = line;
        last_use_[operand.storage] = line;
        if (backward && !operand.written) storage.read_in_backward = true;
      }
      if (instruction.dropped >= 0) {
        draft_.storages[instruction.dropped].last_line = line;
      }
    }
    for (Storage& storage : draft_.storages) {
      storage.placed_from = storage.first_line;
    }
  }

  const DraftBlock* LayerBlock(int segment, bool backward) const {
    for (const DraftBlock& block : draft_.microbatch) {
      if (block.segment == segment && block.descending == backward) {
        return &block;
      }
    }
    return nullptr;
  }

  // Values of the layers that backward reads get a place in their group's
  // record; the input of a group always has one.
  void KeepRecords() {
    if (!training_) return;
    for (Storage& storage : draft_.storages) {
      const StorageKey& key = storage.key;
      if (key.content != Content::kValue || storage.first_line < 0 ||
          storage.home != Home::kTemporary) {
        continue;
      }
      const Value& value = draft_.graph->values[key.value];
      if (value.kind != ValueKind::kActivation) continue;
      const bool is_input = draft_.IsGroupInput(key);
      if (!storage.read_in_backward && !is_input) continue;
      storage.memory_class = MemoryClass::kSaved;
      if (key.segment < 0) continue;
      storage.home = Home::kRecord;
      if (!is_input) continue;
      // In a segment of several groups, the last group's input is written by
      // the iteration before.
      if (const DraftBlock* forward = LayerBlock(key.segment, false)) {
        if (forward->count > 1) {
          storage.placed_from =
              std::min(storage.placed_from, forward->first_line);
        }
      }
      if (const DraftBlock* backward = LayerBlock(key.segment, true)) {
        storage.last_line = std::max(storage.last_line, LastLine(*backward));
      }
    }
  }

  // What a repeating block uses but does not own lives through all iterations:
  // from before its first to after its last.
  void ExtendAcrossLoops() {
    for (size_t b = 0; b < draft_.microbatch.size(); ++b) {
      const DraftBlock& block = draft_.microbatch[b];
      if (block.count == 1 && !block.chunks) continue;
      const int end = EndLine(block);
      for (const DraftInstruction& instruction : block.instructions) {
        for (const DraftOperand& operand : instruction.operands) {
          Storage& storage = draft_.storages[operand.storage];
          if (storage.home != Home::kTemporary ||
              storage.key.value == draft_.graph->stream ||
              (block.segment >= 0 && storage.key.segment == block.segment)) {
            continue;
          }
          const bool born_here = storage.first_line >= block.first_line;
          const bool dies_here = storage.last_line < end;
          if (born_here && dies_here) continue;
          if (born_here) {
            storage.first_line = block.first_line - 1;
            storage.placed_from = storage.first_line;
          }
          if (dies_here && b + 1 < draft_.microbatch.size()) {
            storage.last_line = end;
          }
        }
      }
    }
  }

  static bool IsWhole(const DraftOperand& operand, const Storage& storage) {
    return operand.byte_offset == 0 && operand.byte_offset_stride == 0 &&
           operand.row_stride == operand.type.row_elements() &&
           AlignUp(operand.type.bytes()) == storage.bytes;
  }

  static const DraftOperand* FindOperand(const DraftInstruction& instruction,
                                         int slot, bool gradient) {
    for (const DraftOperand& operand : instruction.operands) {
      if (operand.slot == slot && operand.gradient == gradient) return &operand;
    }
    return nullptr;
  }

  void ChooseInPlace(DraftBlock& block) {
    for (size_t i = 0; i < block.instructions.size(); ++i) {
      DraftInstruction& instruction = block.instructions[i];
      if (instruction.kind != InstructionKind::kCompute) continue;
      const int line = block.first_line + static_cast<int>(i);
      for (const Overwrite& overwrite :
           GetOpDef(instruction.op).may_overwrite) {
        if (overwrite.backward != instruction.backward_kernel) continue;
        const DraftOperand* written = FindOperand(
            instruction, overwrite.written, instruction.backward_kernel);
        const DraftOperand* read =
            FindOperand(instruction, overwrite.read, overwrite.read_gradient);
        if (written == nullptr || read == nullptr) continue;
        Storage& result = draft_.storages[written->storage];
        const Storage& operand = draft_.storages[read->storage];
        const bool possible =
            result.home == Home::kTemporary &&
            operand.home == Home::kTemporary && result.takes_over < 0 &&
            result.first_line == line && operand.last_line == line &&
            result.bytes == operand.bytes && IsWhole(*written, result) &&
            IsWhole(*read, operand) && !TakenAt(line, read->storage);
        if (!possible) continue;
        result.takes_over = read->storage;
        instruction.replaces.push_back({read->storage, written->storage});
      }
    }
  }

  // Storages of a row loop, or of a product and its tail, live through all of
  // it, since its instructions run block by block; those of a loop that nobody
  // outside it uses need no storage.
  void SettleLoops(DraftBlock& block) {
    std::vector<bool> taken(draft_.storages.size(), false);
    for (const Storage& storage : draft_.storages) {
      if (storage.takes_over >= 0) taken[storage.takes_over] = true;
    }
    std::vector<bool> can_move(draft_.storages.size(), false);
    const auto for_each_loop = [&](const auto& visit) {
      for (size_t i = 0; i < block.instructions.size(); ++i) {
        const size_t end = EndOfLoop(block, i);
        if (end == i + 1) continue;
        visit(i, end, block.first_line + static_cast<int>(i),
              block.first_line + static_cast<int>(end) - 1);
      }
    };
    for_each_loop([&](size_t begin, size_t end, int first, int last) {
      for (size_t i = begin; i < end; ++i) {
        if (block.instructions[begin].slice_rows == 0) break;
        for (const DraftOperand& operand : block.instructions[i].operands) {
          const Storage& storage = draft_.storages[operand.storage];
          can_move[operand.storage] =
              storage.home == Home::kTemporary && storage.takes_over < 0 &&
              !taken[operand.storage] && storage.first_line >= first &&
              storage.placed_from >= first &&
              last_use_[operand.storage] <= last && IsWhole(operand, storage);
        }
      }
    });
    MoveToScratch(block, can_move, draft_, backend_);
    for_each_loop([&](size_t begin, size_t end, int first, int last) {
      for (size_t i = begin; i < end; ++i) {
        for (const DraftOperand& operand : block.instructions[i].operands) {
          if (operand.storage < 0) continue;
          Storage& storage = draft_.storages[operand.storage];
          if (!IsPlaced(storage)) continue;
          if (storage.takes_over < 0 && storage.first_line > first &&
              storage.first_line <= last) {
            storage.first_line = first;
          }
          storage.placed_from =
              std::min(storage.placed_from, storage.first_line);
          if (!taken[operand.storage] && storage.last_line >= first) {
            storage.last_line = std::max(storage.last_line, last);
          }
        }
      }
    });
  }

  // The place of a staged storage is taken from the first line that mentions
  // the storage to the last, copies included, and all through a block that
  // repeats.
  void ReserveStaged() {
    for (const DraftBlock& block : draft_.microbatch) {
      const auto reserve = [&](int s, int line) {
        if (s < 0) return;
        Storage& storage = draft_.storages[s];
        if (storage.home != Home::kStaged) return;
        const bool repeats = block.count > 1;
        const int first = repeats ? block.first_line : line;
        const int last = repeats ? EndLine(block) - 1 : line;
        storage.placed_from = storage.placed_from < 0
                                  ? first
                                  : std::min(storage.placed_from, first);
        storage.placed_until = std::max(storage.placed_until, last);
      };
      for (size_t i = 0; i < block.instructions.size(); ++i) {
        const int line = block.first_line + static_cast<int>(i);
        for (const DraftOperand& operand : block.instructions[i].operands) {
          reserve(operand.storage, line);
        }
        for (const int s : block.instructions[i].frees) reserve(s, line);
      }
    }
    for (Storage& storage : draft_.storages) {
      if (storage.home != Home::kStaged) continue;
      // Row loops run whole.
      storage.placed_from = std::min(storage.placed_from, storage.first_line);
      storage.placed_until = std::max(storage.placed_until, storage.last_line);
    }
  }

  bool TakenAt(int line, int storage) const {
    for (const auto& [old_storage, new_storage] : lines_[line]->replaces) {
      if (old_storage == storage) return true;
    }
    return false;
  }

  int Origin(int storage) const {
    while (draft_.storages[storage].takes_over >= 0) {
      storage = draft_.storages[storage].takes_over;
    }
    return storage;
  }

  // A stream that is not in records has one place: every block must leave it
  // where it found it.
  absl::Status CheckStream() const {
    int origin = -1;
    for (size_t s = 0; s < draft_.storages.size(); ++s) {
      const Storage& storage = draft_.storages[s];
      const StorageKey& key = storage.key;
      const bool carried =
          key.value == draft_.graph->stream && key.layer_in_group == 0 &&
          storage.home == Home::kTemporary && storage.first_line >= 0 &&
          (key.content == Content::kGradient
               ? IsFinalGradient(static_cast<int>(s))
               : key.content == Content::kValue);
      if (!carried) continue;
      const int o = Origin(static_cast<int>(s));
      if (origin >= 0 && o != origin) {
        return absl::InternalError(
            absl::StrCat("the stream changes its place: ", storage.name,
                         " of segment ", key.segment));
      }
      origin = o;
    }
    return absl::OkStatus();
  }

  // Not a part that is still to be added: read by another block than the one
  // that writes it.
  bool IsFinalGradient(int s) const {
    const Storage& storage = draft_.storages[s];
    for (const DraftBlock& block : draft_.microbatch) {
      if (storage.first_line >= block.first_line &&
          storage.first_line < EndLine(block)) {
        return storage.last_line >= EndLine(block);
      }
    }
    return false;
  }

  void WriteLists() {
    std::vector<bool> taken(draft_.storages.size(), false);
    for (const Storage& storage : draft_.storages) {
      if (storage.takes_over >= 0) taken[storage.takes_over] = true;
    }
    for (size_t s = 0; s < draft_.storages.size(); ++s) {
      const Storage& storage = draft_.storages[s];
      if (!IsPlaced(storage) || storage.first_line < 0) continue;
      const int id = static_cast<int>(s);
      // A copy in begins the life of what backward reads, the wait for a copy
      // out ends that of its source: both are in the lists already.
      StorageKey copy = storage.key;
      copy.content = Content::kHostCopy;
      const bool begins_by_copy = storage.home == Home::kStaged &&
                                  storage.key.content == Content::kPrefetched;
      const bool ends_by_copy = storage.home == Home::kStaged &&
                                !begins_by_copy && draft_.Find(copy) >= 0;
      if (storage.takes_over < 0 && !begins_by_copy) {
        lines_[storage.first_line]->allocates.push_back(id);
      }
      if (!taken[s] && !ends_by_copy) {
        lines_[storage.last_line]->frees.push_back(id);
      }
    }
    // The input of a segment's groups is written by the block before and, for
    // all groups but the first, by the segment's own block, which names it as
    // the next segment's: the record's stride makes the two one.
  }

  Draft& draft_;
  const bool training_;
  const Backend& backend_;
  std::vector<DraftInstruction*> lines_;
  std::vector<int>
      last_use_;  // by storage: the last line with an operand on it
};

}  // namespace

absl::Status AnalyzeLiveness(Draft& draft, bool training,
                             const Backend& backend) {
  return Analysis(draft, training, backend).Run();
}

}  // namespace ebb
