// Finds which block reads which parameter, and brings it there.
#include "worker/program/offload_parameters.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "worker/program/draft_edit.h"
#include "worker/program/state_pieces.h"

namespace ebb {
namespace {

class ParameterInserter {
 public:
  explicit ParameterInserter(Draft& draft)
      : draft_(draft), insertions_(draft.microbatch.size()) {}

  absl::Status Run() {
    EBB_RETURN_IF_ERROR(FindReaders());
    if (copies_.empty()) return absl::OkStatus();
    for (Copy& copy : copies_) Place(copy);
    for (const Copy& copy : copies_) {
      if (IsOfLayer(copy)) {
        BringLayers(copy);
      } else {
        BringOutside(copy);
      }
    }
    LetReadCopies();
    for (size_t b = 0; b < insertions_.size(); ++b) {
      std::move(insertions_[b]).ApplyTo(draft_.microbatch[b]);
    }
    return absl::OkStatus();
  }

 private:
  // One parameter in the blocks first..last, which follow each other.
  struct Copy {
    int parameter = 0;  // storage off the device
    int place = -1;     // storage on it
    int first = 0;
    int last = 0;
    Use use;  // in the first block
  };

  bool LiesOffDevice(int storage) const {
    const Storage& s = draft_.storages[storage];
    return s.home == Home::kState && IsOffDevice(s.address.arena);
  }

  bool IsOfLayer(const Copy& copy) const {
    return draft_.storages[copy.parameter].key.segment >= 0;
  }

  // Copies in the order in which they are needed.
  absl::Status FindReaders() {
    std::map<int, size_t> open;  // by parameter: its newest copy
    const int num_blocks = static_cast<int>(draft_.microbatch.size());
    for (int b = 0; b < num_blocks; ++b) {
      const DraftBlock& block = draft_.microbatch[b];
      for (const DraftInstruction& instruction : block.instructions) {
        for (const DraftOperand& operand : instruction.operands) {
          if (operand.storage < 0 || !LiesOffDevice(operand.storage)) continue;
          if (operand.written) {
            return absl::InternalError(
                absl::StrCat(draft_.storages[operand.storage].name,
                             " lies off the device and is written by ",
                             instruction.name, " of block ", block.name));
          }
          const auto found = open.find(operand.storage);
          if (found != open.end()) {
            Copy& newest = copies_[found->second];
            if (newest.last == b) continue;
            if (newest.last == b - 1 && !IsOfLayer(newest)) {
              newest.last = b;
              continue;
            }
          }
          Copy copy;
          copy.parameter = operand.storage;
          copy.first = copy.last = b;
          copy.use = FindUse(block, operand.storage, /*written_only=*/false);
          open[operand.storage] = copies_.size();
          copies_.push_back(copy);
        }
      }
    }
    return absl::OkStatus();
  }

  bool IsHeldLong(const Copy& copy) const {
    return 2 * (copy.use.end - copy.use.begin) >
           draft_.microbatch[copy.first].instructions.size();
  }

  void Place(Copy& copy) {
    const Storage& parameter = draft_.storages[copy.parameter];
    Storage place;
    place.key = parameter.key;
    place.key.content = Content::kPrefetched;
    place.key.version = copy.first + 1;
    place.name = parameter.name;
    place.bytes = parameter.bytes;
    place.memory_class = parameter.memory_class;
    place.home = Home::kStaged;
    const bool repeats = draft_.microbatch[copy.first].count > 1;
    place.ring = IsOfLayer(copy) && repeats && IsHeldLong(copy) ? 2 : 1;
    copy.place = draft_.Add(std::move(place));
  }

  const ParameterLayout& LayoutOf(const Copy& copy) const {
    const int value = draft_.storages[copy.parameter].key.value;
    return draft_.parameters[draft_.parameter_of_value[value]];
  }

  // The rows off the device.
  int StateOf(const Copy& copy, const PieceRows& rows) {
    const Storage& whole = draft_.storages[copy.parameter];
    if (rows.count == LayoutOf(copy).type.dims[0]) return copy.parameter;
    Storage part;
    part.key = whole.key;
    part.key.version = rows.number + 1;
    if (const int found = draft_.Find(part.key); found >= 0) return found;
    part.name = whole.name;
    part.memory_class = whole.memory_class;
    part.home = Home::kState;
    part.address = whole.address;
    part.address.base += rows.ByteOffset(LayoutOf(copy).type);
    part.bytes =
        BytesIn(part.address.arena, rows.TypeOf(LayoutOf(copy).type).bytes());
    return draft_.Add(std::move(part));
  }

  std::vector<PieceRows> PiecesOf(const Copy& copy) const {
    return CutIntoPieces(LayoutOf(copy), draft_.parameters);
  }

  DraftInstruction Start(InstructionKind kind, const Copy& copy, int block,
                         GroupOf group, Iterations iterations) const {
    const DraftBlock& in = draft_.microbatch[block];
    DraftInstruction instruction;
    instruction.kind = kind;
    instruction.phase = in.descending ? Phase::kBackward : Phase::kForward;
    instruction.name = draft_.storages[copy.parameter].name;
    instruction.layer_in_group =
        draft_.storages[copy.parameter].key.layer_in_group;
    instruction.group = group;
    instruction.iterations = iterations;
    return instruction;
  }

  Iterations OnceIn(int block, Iterations iterations) const {
    return draft_.microbatch[block].count > 1 ? iterations : Iterations::kAll;
  }

  void Prefetch(const Copy& copy, int block, size_t at, GroupOf group,
                Iterations iterations) {
    const TensorType& type = LayoutOf(copy).type;
    bool is_first = true;
    for (const PieceRows& rows : PiecesOf(copy)) {
      DraftInstruction prefetch =
          Start(InstructionKind::kPrefetch, copy, block, group, iterations);
      const TensorType piece = rows.TypeOf(type);
      DraftOperand place = BindWhole(1, copy.place, piece, true);
      place.byte_offset = rows.ByteOffset(type);
      prefetch.operands = {BindWhole(0, StateOf(copy, rows), piece, false),
                           place};
      if (std::exchange(is_first, false)) prefetch.allocates = {copy.place};
      insertions_[block].Add(at, Order::kBegin, std::move(prefetch));
    }
  }

  void Await(const Copy& copy, Iterations iterations) {
    DraftInstruction wait = Start(InstructionKind::kAwait, copy, copy.first,
                                  GroupOf::kIteration, iterations);
    for (const PieceRows& rows : PiecesOf(copy)) {
      wait.operands.push_back(BindWhole(
          0, StateOf(copy, rows), rows.TypeOf(LayoutOf(copy).type), false));
    }
    insertions_[copy.first].Add(copy.use.begin, Order::kWait, std::move(wait));
  }

  void BringLayers(const Copy& copy) {
    const int index = copy.first;
    const DraftBlock& block = draft_.microbatch[index];
    Storage& own = draft_.storages[copy.place];
    if (block.count > 1) {
      Prefetch(copy, index, own.ring > 1 ? 0 : copy.use.end,
               block.descending ? GroupOf::kBefore : GroupOf::kAfter,
               Iterations::kAllButLast);
    }
    Await(copy, Iterations::kAll);
    // The first to run, where the segment before is done with its own.
    const int before = index - 1;
    size_t at = 0;
    for (const Copy& other : copies_) {
      const StorageKey& key = draft_.storages[other.place].key;
      if (other.first != before || key.value != own.key.value ||
          key.segment < 0 || key.layer_in_group != own.key.layer_in_group ||
          draft_.storages[other.place].ring > 1 || own.ring > 1) {
        continue;
      }
      at = other.use.end;
      own.same_place = other.place;
    }
    Prefetch(copy, before, at,
             block.descending ? GroupOf::kLast : GroupOf::kFirst,
             OnceIn(before, Iterations::kLast));
  }

  void BringOutside(const Copy& copy) {
    // A small block between layers and reader gives no time.
    int before = std::max(0, copy.first - 1);
    while (before > 0 && draft_.microbatch[before].segment < 0) --before;
    // Of one parameter one copy is on its way at a time.
    for (const Copy& other : copies_) {
      if (other.parameter == copy.parameter && other.last < copy.first) {
        before = std::max(before, other.last + 1);
      }
    }
    Prefetch(copy, before, 0, GroupOf::kIteration,
             OnceIn(before, before == copy.first ? Iterations::kFirst
                                                 : Iterations::kLast));
    Await(copy, OnceIn(copy.first, Iterations::kFirst));
    DraftBlock& last = draft_.microbatch[copy.last];
    if (last.count == 1) return;  // it ends with its last reader
    DraftInstruction drop = Start(InstructionKind::kDrop, copy, copy.last,
                                  GroupOf::kIteration, Iterations::kLast);
    drop.dropped = copy.place;
    insertions_[copy.last].Add(last.instructions.size(), Order::kBegin,
                               std::move(drop));
  }

  void LetReadCopies() {
    for (const Copy& copy : copies_) {
      for (int b = copy.first; b <= copy.last; ++b) {
        for (DraftInstruction& instruction :
             draft_.microbatch[b].instructions) {
          for (DraftOperand& operand : instruction.operands) {
            if (operand.storage == copy.parameter) operand.storage = copy.place;
          }
        }
      }
    }
  }

  Draft& draft_;
  std::vector<Insertions> insertions_;  // by block
  std::vector<Copy> copies_;
};

}  // namespace

absl::Status InsertParameterCopies(Draft& draft) {
  return ParameterInserter(draft).Run();
}

}  // namespace ebb
