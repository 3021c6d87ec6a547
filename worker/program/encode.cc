// Finds where each encoded value is read last in forward and first in backward.
#include "worker/program/encode.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/decode.h"
#include "kernels/ops/encode.h"
#include "kernels/ops/fill_zero.h"
#include "kernels/ops/op_def.h"
#include "kernels/status.h"
#include "worker/program/fuse.h"

namespace ebb {
namespace {

class Inserter {
 public:
  Inserter(Draft& draft, const Backend& backend)
      : draft_(draft),
        backend_(backend),
        insertions_(draft.microbatch.size()) {}

  absl::Status Run() {
    std::vector<int> decoded;  // storages
    for (size_t s = 0; s < draft_.storages.size(); ++s) {
      if (draft_.storages[s].key.content == Content::kDecoded) {
        decoded.push_back(static_cast<int>(s));
      }
    }
    if (decoded.empty()) return absl::OkStatus();
    AddErrors(decoded);
    for (const int storage : decoded) {
      EBB_RETURN_IF_ERROR(WriteCodec(storage));
    }
    for (size_t b = 0; b < insertions_.size(); ++b) {
      Apply(insertions_[b], draft_.microbatch[b]);
    }
    return absl::OkStatus();
  }

 private:
  // By position in the block as it is.
  using Insertions = std::multimap<size_t, DraftInstruction>;

  static void Apply(Insertions& insertions, DraftBlock& block) {
    std::vector<DraftInstruction> instructions;
    auto next = insertions.begin();
    for (size_t i = 0; i <= block.instructions.size(); ++i) {
      for (; next != insertions.end() && next->first == i; ++next) {
        instructions.push_back(std::move(next->second));
      }
      if (i < block.instructions.size()) {
        instructions.push_back(std::move(block.instructions[i]));
      }
    }
    block.instructions = std::move(instructions);
  }

  // One total for all layers of all values, zeroed with the others.
  void AddErrors(const std::vector<int>& decoded) {
    EncodeErrors& errors = draft_.encode_errors;
    errors.num_layers = draft_.graph->num_layers;
    for (const int s : decoded) {
      const Storage& storage = draft_.storages[s];
      errors.format = draft_.FormatOf(storage.key);
      const auto known =
          std::find(errors.values.begin(), errors.values.end(), storage.name);
      if (known == errors.values.end()) errors.values.push_back(storage.name);
    }
    std::sort(errors.values.begin(), errors.values.end());
    for (const std::string& name : errors.values) {
      for (const Value& value : draft_.graph->values) {
        if (value.name == name) errors.types.push_back(value.type);
      }
    }
    const TensorType type(DType::kF64,
                          encode::kNumErrors * errors.num_layers *
                              static_cast<int64_t>(errors.values.size()));
    errors.address = {Arena::kStep, draft_.fixed_step_bytes, 0};
    Storage total;
    total.key.content = Content::kTotal;
    total.key.version = kNumTotals;
    total.name = "encode_errors";
    total.bytes = AlignUp(type.bytes());
    total.home = Home::kScalar;
    total.address = errors.address;
    draft_.fixed_step_bytes += total.bytes;
    total_ = draft_.Add(std::move(total));
    DraftInstruction zero;
    zero.phase = Phase::kUpdate;
    zero.name = draft_.storages[total_].name;
    zero.op = Op::kFillZero;
    zero.operands = {Bind(fill_zero::kX, total_, type, true)};
    zero.allocates = {total_};
    draft_.begin.front().instructions.push_back(std::move(zero));
  }

  static DraftOperand Bind(int slot, int storage, const TensorType& type,
                           bool written) {
    DraftOperand operand;
    operand.slot = static_cast<int8_t>(slot);
    operand.storage = storage;
    operand.type = type;
    operand.row_stride = type.row_elements();
    operand.written = written;
    return operand;
  }

  DraftOperand Bind(int slot, int storage, bool written) const {
    return Bind(slot, storage, draft_.TypeOf(draft_.storages[storage].key),
                written);
  }

  // The value's own sums within the total.
  DraftOperand BindErrors(const StorageKey& key) const {
    const EncodeErrors& errors = draft_.encode_errors;
    const auto value =
        std::lower_bound(errors.values.begin(), errors.values.end(),
                         draft_.graph->values[key.value].name) -
        errors.values.begin();
    const LayerSegment& segment = draft_.segments[key.segment];
    DraftOperand operand =
        Bind(encode::kError, total_, {DType::kF64, encode::kNumErrors}, true);
    const int64_t bytes = operand.type.bytes();
    operand.byte_offset = bytes * (value * errors.num_layers +
                                   segment.first_layer + key.layer_in_group);
    operand.byte_offset_stride = bytes * segment.period;
    return operand;
  }

  // FLOPs are left out: they are neither the model's nor of recompute.
  DraftInstruction Start(Op op, Phase phase, const Storage& value) const {
    DraftInstruction instruction;
    instruction.op = op;
    instruction.phase = phase;
    instruction.name = value.name;
    instruction.layer_in_group = value.key.layer_in_group;
    return instruction;
  }

  // Adds a storage of the value's encoded form.
  int AddPart(StorageKey key, EncodedPart part, Content content,
              const std::string& name) {
    key.part = part;
    key.content = content;
    Storage storage;
    storage.key = key;
    storage.name =
        absl::StrCat(name, part == EncodedPart::kCode ? ".code" : ".scale");
    storage.bytes = AlignUp(draft_.TypeOf(key).bytes());
    storage.memory_class = MemoryClass::kSaved;
    return draft_.Add(std::move(storage));
  }

  absl::Status WriteCodec(int decoded) {
    const StorageKey key = draft_.storages[decoded].key;
    const std::string name = draft_.storages[decoded].name;
    const DType format = draft_.FormatOf(key);
    const bool is_offloaded = IsOffload(
        draft_.segments[key.segment].decision(key.layer_in_group, key.value));
    StorageKey made_key = key;
    made_key.content = Content::kValue;
    const int made = draft_.Find(made_key);
    if (made < 0) return Misplaced(name, "is not made by forward");

    DraftInstruction encode =
        Start(Op::kEncode, Phase::kForward, draft_.storages[made]);
    DraftInstruction decode =
        Start(Op::kDecode, Phase::kBackward, draft_.storages[decoded]);
    encode.attrs.result = format;
    decode.attrs.result = draft_.graph->values[key.value].type.dtype;
    encode.operands = {Bind(encode::kX, made, false)};
    for (const EncodedPart part : {EncodedPart::kCode, EncodedPart::kScale}) {
      const bool is_code = part == EncodedPart::kCode;
      if (!is_code && format == DType::kBf16) continue;
      const int kept = AddPart(key, part, Content::kValue, name);
      const int read =
          is_offloaded ? AddPart(key, part, Content::kPrefetched, name) : kept;
      encode.operands.push_back(
          Bind(is_code ? encode::kCode : encode::kScale, kept, true));
      decode.operands.push_back(
          Bind(is_code ? decode::kCode : decode::kScale, read, false));
    }
    encode.operands.push_back(BindErrors(key));
    decode.operands.push_back(Bind(decode::kX, decoded, true));
    const OpDef& def = GetOpDef(Op::kEncode);
    std::vector<TensorType> types(def.num_slots());
    for (const DraftOperand& operand : encode.operands) {
      types[operand.slot] = operand.type;
    }
    encode.workspace_bytes =
        AlignUp(def.workspace_bytes(encode.attrs, types, 0, backend_));

    size_t behind = 0;
    bool is_read = false;
    for (size_t b = 0; b < draft_.microbatch.size(); ++b) {
      const DraftBlock& block = draft_.microbatch[b];
      const bool is_own = block.segment == key.segment;
      if (is_own && !block.descending) {
        behind = EndOfUse(block, made);
        if (behind == 0) return Misplaced(name, "is not used by its segment");
        if (draft_.IsGroupInput(key)) {
          EBB_RETURN_IF_ERROR(HandOn(block, behind, made));
        }
        insertions_[b].emplace(behind, encode);
      } else if (is_own) {
        const size_t at = BeginOfUse(block, decoded);
        insertions_[b].emplace(at, decode);
        is_read = true;
      } else if (BeginOfUse(block, decoded) < block.instructions.size()) {
        return Misplaced(name, "is read outside its segment's backward");
      }
    }
    EBB_CHECK(is_read);
    return absl::OkStatus();
  }

  // The input of a group leaves its place before the next group's is made, in
  // the same place where that one is encoded, too.
  absl::Status HandOn(const DraftBlock& block, size_t behind, int made) {
    Storage& input = draft_.storages[made];
    input.home = Home::kStaged;
    input.memory_class = MemoryClass::kLive;
    StorageKey next = input.key;
    ++next.segment;
    const int next_made = draft_.Find(next);
    if (next_made < 0 || BeginOfUse(block, next_made) < behind) {
      return Misplaced(input.name, "is read when the next one is made");
    }
    if (draft_.FormatOf(next) != DType::kNone) {
      draft_.storages[next_made].same_place = made;
    }
    return absl::OkStatus();
  }

  static bool Uses(const DraftInstruction& instruction, int storage) {
    return std::any_of(instruction.operands.begin(), instruction.operands.end(),
                       [storage](const DraftOperand& operand) {
                         return operand.storage == storage;
                       });
  }

  // One past the last instruction that uses the storage, row loops whole; 0:
  // there is none.
  static size_t EndOfUse(const DraftBlock& block, int storage) {
    size_t end_of_use = 0;
    for (size_t i = 0; i < block.instructions.size();) {
      const size_t end = EndOfLoop(block, i);
      for (; i < end; ++i) {
        if (Uses(block.instructions[i], storage)) end_of_use = end;
      }
    }
    return end_of_use;
  }

  // The first instruction that uses the storage, or the first of its row loop;
  // one past the last: there is none.
  static size_t BeginOfUse(const DraftBlock& block, int storage) {
    for (size_t i = 0; i < block.instructions.size();) {
      const size_t begin = i;
      const size_t end = EndOfLoop(block, i);
      for (; i < end; ++i) {
        if (Uses(block.instructions[i], storage)) return begin;
      }
    }
    return block.instructions.size();
  }

  static absl::Status Misplaced(const std::string& name, const char* what) {
    return absl::InternalError(absl::StrCat("encoded value ", name, " ", what));
  }

  Draft& draft_;
  const Backend& backend_;
  std::vector<Insertions> insertions_;  // by block
  int total_ = -1;                      // storage of the sums of errors
};

}  // namespace

absl::Status InsertCodecs(Draft& draft, const Backend& backend) {
  return Inserter(draft, backend).Run();
}

}  // namespace ebb
