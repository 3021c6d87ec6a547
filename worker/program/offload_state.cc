// Cuts the updates into pieces and puts the copies between them.
#include "worker/program/offload_state.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/adamw.h"
#include "kernels/status.h"
#include "worker/program/draft_edit.h"
#include "worker/program/state_pieces.h"

namespace ebb {
namespace {

constexpr int kNumPlaces = 3;

// What of an operand's storage lies off the device and has to be brought, also
// if AdamW only writes it: in a skipped step it writes nothing.
struct Part {
  size_t operand = 0;  // index in the piece's update
  int state = 0;       // the whole storage off the device
  TensorType type;     // of the piece
  int64_t offset = 0;  // of the piece in the whole
  int64_t place_offset = 0;
};

// Rows of one parameter that are updated at once.
struct Piece {
  DraftInstruction update;  // its operands still name the whole storages
  int number = 0;           // within the parameter
  std::vector<Part> parts;
};

bool LiesOffDevice(const Storage& storage) {
  return storage.home == Home::kState && IsOffDevice(storage.address.arena);
}

class StateInserter {
 public:
  explicit StateInserter(Draft& draft) : draft_(draft) {}

  absl::Status Run() {
    EBB_RETURN_IF_ERROR(FindBlocks());
    if (blocks_.empty()) return absl::OkStatus();
    for (const int b : blocks_) CutBlock(draft_.end[b]);
    PlacePieces();
    for (size_t n = 0; n < blocks_.size(); ++n) Rewrite(n);
    // What is needed first comes beside the gradients' norm.
    DraftBlock& first = draft_.end.front();
    std::vector<DraftInstruction> instructions;
    Prefetch({0, 0, /*is_foreign=*/true}, Once(first, Iterations::kFirst),
             instructions);
    first.instructions.insert(first.instructions.begin(),
                              std::make_move_iterator(instructions.begin()),
                              std::make_move_iterator(instructions.end()));
    return absl::OkStatus();
  }

 private:
  // A piece as an instruction names it.
  struct PieceRef {
    size_t block = 0;  // index in blocks_
    size_t piece = 0;
    // Of a block that runs before or after the instruction's.
    bool is_foreign = false;
    int shift = 0;  // else: iterations from the instruction's
  };

  absl::Status FindBlocks() {
    for (size_t b = 0; b < draft_.end.size(); ++b) {
      const DraftBlock& block = draft_.end[b];
      const auto uses_state = [this](const DraftInstruction& instruction) {
        return std::any_of(
            instruction.operands.begin(), instruction.operands.end(),
            [this](const DraftOperand& operand) {
              return LiesOffDevice(draft_.storages[operand.storage]);
            });
      };
      const auto count =
          std::count_if(block.instructions.begin(), block.instructions.end(),
                        [&](const DraftInstruction& instruction) {
                          return uses_state(instruction);
                        });
      if (count == 0) continue;
      const bool updates_all =
          count == static_cast<int64_t>(block.instructions.size()) &&
          std::all_of(block.instructions.begin(), block.instructions.end(),
                      [](const DraftInstruction& instruction) {
                        return instruction.op == Op::kAdamw;
                      });
      if (!updates_all || (block.count > 1 && count < 2) ||
          (!blocks_.empty() && draft_.end[blocks_.back()].count > 1)) {
        return absl::InternalError(absl::StrCat(
            "state off the device is used in another way than by the updates "
            "of all parameters: block ",
            block.name));
      }
      blocks_.push_back(static_cast<int>(b));
    }
    return absl::OkStatus();
  }

  void CutBlock(const DraftBlock& block) {
    std::vector<Piece>& pieces = pieces_.emplace_back();
    for (const DraftInstruction& update : block.instructions) {
      const int value = draft_.storages[update.operands[0].storage].key.value;
      const ParameterLayout& layout =
          draft_.parameters[draft_.parameter_of_value[value]];
      for (const PieceRows& rows : CutIntoPieces(layout, draft_.parameters)) {
        Piece& piece = pieces.emplace_back();
        piece.number = rows.number;
        piece.update = Cut(update, rows);
        FindParts(piece);
      }
    }
  }

  // The update of some rows.
  static DraftInstruction Cut(const DraftInstruction& whole,
                              const PieceRows& rows) {
    DraftInstruction update = whole;
    const int64_t all = whole.operands[0].type.dims[0];
    if (rows.count == all) return update;
    std::vector<TensorType> types(GetOpDef(update.op).slots.size());
    for (DraftOperand& operand : update.operands) {
      if (operand.slot != adamw::kScale) {
        operand.byte_offset = rows.ByteOffset(operand.type);
        operand.type = rows.TypeOf(operand.type);
      }
      types[operand.slot] = operand.type;
    }
    update.flops = static_cast<double>(
        GetOpDef(update.op).forward_flops(update.attrs, types));
    if (rows.first + rows.count < all) update.frees.clear();
    return update;
  }

  void FindParts(Piece& piece) const {
    int64_t end = 0;
    for (size_t i = 0; i < piece.update.operands.size(); ++i) {
      const DraftOperand& operand = piece.update.operands[i];
      if (!LiesOffDevice(draft_.storages[operand.storage])) continue;
      Part part;
      part.operand = i;
      part.state = operand.storage;
      part.type = operand.type;
      part.offset = operand.byte_offset;
      part.place_offset = end;
      end += AlignUp(part.type.bytes());
      piece.parts.push_back(part);
    }
  }

  void PlacePieces() {
    int64_t pieces_before = 0;
    for (const std::vector<Piece>& pieces : pieces_) {
      first_.push_back(pieces_before);
      pieces_before += static_cast<int64_t>(pieces.size());
      for (const Piece& piece : pieces) {
        const Part& last = piece.parts.back();
        place_bytes_ = std::max(place_bytes_,
                                last.place_offset + AlignUp(last.type.bytes()));
      }
    }
    base_ = draft_.fixed_step_bytes;
    for (const DraftBlock& block : draft_.end) {
      for (const DraftInstruction& instruction : block.instructions) {
        base_ = std::max(base_,
                         draft_.fixed_step_bytes + instruction.workspace_bytes);
      }
    }
    draft_.update_step_bytes = base_ + kNumPlaces * place_bytes_;
  }

  const DraftBlock& BlockOf(size_t n) const { return draft_.end[blocks_[n]]; }

  static Iterations Once(const DraftBlock& block, Iterations iterations) {
    return block.count > 1 ? iterations : Iterations::kAll;
  }

  // The place of a part, as the instruction's iteration sees it.
  int PlaceOf(const PieceRef& ref, const Part& part) {
    const Piece& piece = pieces_[ref.block][ref.piece];
    Storage storage = Like(draft_.storages[part.state], ref);
    storage.key.content = Content::kInUpdate;
    storage.key.version = (piece.number * adamw::kNumSlots +
                           int{piece.update.operands[part.operand].slot}) *
                              2 +
                          (ref.is_foreign ? 1 : 0);
    storage.bytes = AlignUp(part.type.bytes());
    storage.home = Home::kUpdate;
    const auto num_pieces = static_cast<int64_t>(pieces_[ref.block].size());
    const int64_t number = first_[ref.block] + static_cast<int64_t>(ref.piece) +
                           ref.shift * num_pieces;
    const int64_t place = (number + kNumPlaces * num_pieces) % kNumPlaces;
    storage.address = {Arena::kStep, base_ + part.place_offset, 0};
    const auto ring_step = static_cast<int>(num_pieces % kNumPlaces);
    if (ref.is_foreign || BlockOf(ref.block).count == 1 || ring_step == 0) {
      storage.address.base += place * place_bytes_;
    } else {
      storage.address.stride = place_bytes_;
      storage.address.ring = kNumPlaces;
      storage.address.phase = static_cast<int>(place);
      storage.address.ring_step = ring_step;
    }
    return FindOrAdd(std::move(storage));
  }

  // The part off the device, as the instruction's iteration sees it.
  int StateOf(const PieceRef& ref, const Part& part) {
    const Piece& piece = pieces_[ref.block][ref.piece];
    const Storage& whole = draft_.storages[part.state];
    Storage storage = Like(whole, ref);
    storage.key.version = piece.number + 1;
    storage.bytes = BytesIn(whole.address.arena, part.type.bytes());
    storage.home = Home::kState;
    storage.address = whole.address;
    storage.address.base += part.offset + ref.shift * whole.address.stride;
    return FindOrAdd(std::move(storage));
  }

  static Storage Like(const Storage& whole, const PieceRef& ref) {
    Storage storage;
    storage.key = whole.key;
    storage.key.layer_in_group = ref.shift;
    storage.name = whole.name;
    storage.memory_class = whole.memory_class;
    return storage;
  }

  int FindOrAdd(Storage storage) {
    const int found = draft_.Find(storage.key);
    return found >= 0 ? found : draft_.Add(std::move(storage));
  }

  DraftInstruction Start(InstructionKind kind, int state,
                         Iterations iterations) const {
    DraftInstruction instruction;
    instruction.kind = kind;
    instruction.phase = Phase::kUpdate;
    instruction.name = draft_.storages[state].name;
    instruction.iterations = iterations;
    return instruction;
  }

  void Prefetch(const PieceRef& ref, Iterations iterations,
                std::vector<DraftInstruction>& out) {
    for (const Part& part : pieces_[ref.block][ref.piece].parts) {
      const int state = StateOf(ref, part);
      const int place = PlaceOf(ref, part);
      DraftInstruction copy =
          Start(InstructionKind::kPrefetch, state, iterations);
      copy.operands = {BindWhole(0, state, part.type, false),
                       BindWhole(1, place, part.type, true)};
      copy.allocates = {place};
      out.push_back(std::move(copy));
    }
  }

  void Offload(const PieceRef& ref, std::vector<DraftInstruction>& out) {
    for (const Part& part : pieces_[ref.block][ref.piece].parts) {
      const int state = StateOf(ref, part);
      DraftInstruction copy =
          Start(InstructionKind::kOffload, state, Iterations::kAll);
      copy.operands = {BindWhole(0, PlaceOf(ref, part), part.type, false),
                       BindWhole(1, state, part.type, true)};
      out.push_back(std::move(copy));
    }
  }

  void Await(const PieceRef& ref, bool goes_out, Iterations iterations,
             std::vector<DraftInstruction>& out) {
    DraftInstruction wait;
    for (const Part& part : pieces_[ref.block][ref.piece].parts) {
      const int state = StateOf(ref, part);
      if (wait.operands.empty()) {
        wait = Start(InstructionKind::kAwait, state, iterations);
      }
      wait.operands.push_back(BindWhole(static_cast<int>(wait.operands.size()),
                                        state, part.type, false));
      if (goes_out) wait.frees.push_back(PlaceOf(ref, part));
    }
    if (!wait.operands.empty()) out.push_back(std::move(wait));
  }

  // Calls visit(ref, iterations) for every piece that is number `k`, counted
  // from the start of an iteration of block `n`: of this iteration, of the one
  // before or after, or of the block before or after.
  template <typename Visit>
  void ForEachAt(size_t n, int64_t k, const Visit& visit) {
    const DraftBlock& block = BlockOf(n);
    const auto size = static_cast<int64_t>(pieces_[n].size());
    if (k >= 0 && k < size) {
      visit(PieceRef{n, static_cast<size_t>(k)}, Iterations::kAll);
      return;
    }
    const bool is_before = k < 0;
    if (block.count > 1) {
      const int shift = is_before ? -1 : 1;
      visit(PieceRef{n, static_cast<size_t>(k - shift * size),
                     /*is_foreign=*/false, shift},
            is_before ? Iterations::kAllButFirst : Iterations::kAllButLast);
    }
    const Iterations once =
        Once(block, is_before ? Iterations::kFirst : Iterations::kLast);
    if (!is_before) {
      if (n + 1 < blocks_.size()) visit(PieceRef{n + 1, 0, true}, once);
      return;
    }
    for (size_t before = n; before > 0 && k < 0;) {
      --before;
      k += static_cast<int64_t>(pieces_[before].size());
      if (k >= 0) {
        visit(PieceRef{before, static_cast<size_t>(k), true}, once);
      }
    }
  }

  void Rewrite(size_t n) {
    const auto size = static_cast<int64_t>(pieces_[n].size());
    std::vector<DraftInstruction> out;
    for (int64_t k = 0; k < size; ++k) {
      ForEachAt(n, k - (kNumPlaces - 1),
                [&](const PieceRef& ref, Iterations iterations) {
                  Await(ref, /*goes_out=*/true, iterations, out);
                });
      ForEachAt(n, k + 1, [&](const PieceRef& ref, Iterations iterations) {
        Prefetch(ref, iterations, out);
      });
      const PieceRef own = {n, static_cast<size_t>(k)};
      Await(own, /*goes_out=*/false, Iterations::kAll, out);
      out.push_back(InPlace(own));
      Offload(own, out);
    }
    if (n + 1 == blocks_.size()) {
      for (int64_t k = size - (kNumPlaces - 1); k < size; ++k) {
        // Of the block's last iteration.
        if (k >= 0) {
          Await({n, static_cast<size_t>(k)}, /*goes_out=*/true,
                Once(BlockOf(n), Iterations::kLast), out);
        } else {
          ForEachAt(n, k, [&](const PieceRef& ref, Iterations iterations) {
            if (ref.is_foreign) Await(ref, true, iterations, out);
          });
        }
      }
    }
    draft_.end[blocks_[n]].instructions = std::move(out);
  }

  // The update over the places of what lies off the device.
  DraftInstruction InPlace(const PieceRef& ref) {
    const Piece& piece = pieces_[ref.block][ref.piece];
    DraftInstruction update = piece.update;
    for (const Part& part : piece.parts) {
      DraftOperand& operand = update.operands[part.operand];
      operand.storage = PlaceOf(ref, part);
      operand.byte_offset = 0;
    }
    return update;
  }

  Draft& draft_;
  std::vector<int> blocks_;                 // indices in draft_.end
  std::vector<std::vector<Piece>> pieces_;  // by block
  std::vector<int64_t> first_;  // by block: number of its first piece
  int64_t base_ = 0;            // of the places in the step arena
  int64_t place_bytes_ = 0;
};

}  // namespace

absl::Status InsertStateCopies(Draft& draft) {
  return StateInserter(draft).Run();
}

}  // namespace ebb
