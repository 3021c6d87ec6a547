// The dry walk: a map of live storages per arena.
#include "worker/runtime/storage_check.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "kernels/ops/op_def.h"
#include "kernels/row_loop.h"
#include "kernels/status.h"
#include "worker/model/graph.h"

namespace ebb {
namespace {

// More than any op has: the checker asserts it before use.
constexpr int kMostSlots = 16;

struct Storage {
  std::string name;
  int layer = 0;
  int64_t bytes = 0;
  MemoryClass memory_class = MemoryClass::kLive;
  int64_t reached = 0;               // bytes that operands reached so far
  int64_t block_bytes = kAlignment;  // of which it has whole ones
};

// Bytes from an operand's first element to the end of its last.
int64_t SpanBytes(const Operand& operand) {
  const int64_t last_row = (operand.type.dims[0] - 1) * operand.row_stride;
  return (last_row + operand.type.row_elements()) *
         DTypeBytes(operand.type.dtype);
}

class Walk {
 public:
  Walk(const Program& program, const Backend& backend)
      : program_(program), backend_(backend) {}

  absl::Status Run() {
    EBB_RETURN_IF_ERROR(AddState());
    const int num_blocks = static_cast<int>(program_.blocks.size());
    EBB_RETURN_IF_ERROR(RunBlocks(0, program_.begin_microbatch));
    const int num_microbatches = std::min(program_.num_microbatches, 2);
    for (int microbatch = 0; microbatch < num_microbatches; ++microbatch) {
      EBB_RETURN_IF_ERROR(
          RunBlocks(program_.begin_microbatch, program_.end_microbatch));
      if (!copies_.empty()) {
        return absl::InternalError(
            absl::StrCat("the copy of ", copies_.begin()->second.name,
                         " is not awaited within its microbatch"));
      }
      for (const Arena arena : {Arena::kHost, Arena::kDisk}) {
        if (Live(arena).empty()) continue;
        return absl::InternalError(
            absl::StrCat(Live(arena).begin()->second.name,
                         " stays off the device beyond its microbatch"));
      }
    }
    EBB_RETURN_IF_ERROR(RunBlocks(program_.end_microbatch, num_blocks));
    if (!copies_.empty()) {
      return absl::InternalError(
          absl::StrCat("the copy of ", copies_.begin()->second.name,
                       " is not awaited within its step"));
    }
    for (const auto& [base, storage] : Live(Arena::kStep)) {
      EBB_RETURN_IF_ERROR(CheckReached(storage));
    }
    return absl::OkStatus();
  }

 private:
  using LiveMap = std::map<int64_t, Storage>;

  LiveMap& Live(Arena arena) { return live_[static_cast<int>(arena)]; }

  absl::Status AddState() {
    for (const ParameterLayout& layout : program_.parameters) {
      for (int layer = 0; layer < std::max(1, layout.num_layers); ++layer) {
        struct Part {
          const char* suffix;
          const Address& address;
          const TensorType type;
          MemoryClass memory_class;
        };
        const TensorType fp32 = layout.fp32_type();
        std::vector<Part> parts = {
            {"", layout.parameter, layout.type, MemoryClass::kParameters},
            {".first_moment", layout.first_moment, fp32,
             MemoryClass::kOptimizer},
            {".second_moment", layout.second_moment, fp32,
             MemoryClass::kOptimizer}};
        if (layout.has_master()) {
          parts.push_back(
              {".master", layout.master, fp32, MemoryClass::kOptimizer});
        }
        for (const Part& part : parts) {
          Storage storage{absl::StrCat(layout.name, part.suffix), layer,
                          BytesIn(part.address.arena, part.type.bytes()),
                          part.memory_class};
          storage.block_bytes = BytesIn(part.address.arena, 1);
          EBB_RETURN_IF_ERROR(
              Add(part.address.arena, part.address.At(layer), storage));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status RunBlocks(int begin, int end) {
    for (int b = begin; b < end; ++b) {
      const Block& block = program_.blocks[b];
      for (int64_t n = 0; n < block.count; ++n) {
        const int64_t i = block.descending ? block.count - 1 - n : n;
        const Instruction* loop = nullptr;  // first instruction of one
        for (const Instruction& instruction : block.instructions) {
          if (!block.Runs(instruction, i)) continue;
          if (!instruction.continues) loop = &instruction;
          absl::Status status = Step(block, instruction, i);
          if (status.ok()) status = CheckScratch(instruction, *loop);
          if (!status.ok()) {
            return Annotate(
                status, absl::StrCat("instruction ", instruction.name,
                                     " of block ", block.name, "[", i, "]"));
          }
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Step(const Block& block, const Instruction& instruction,
                    int64_t i) {
    for (const int32_t b : instruction.allocates) {
      EBB_RETURN_IF_ERROR(Allocate(block, block.buffers[b], i));
    }
    if (instruction.kind == InstructionKind::kAwait) {
      EBB_RETURN_IF_ERROR(Await(block, instruction, i));
    } else {
      EBB_RETURN_IF_ERROR(TouchOperands(block, instruction, i, false));
    }
    if (instruction.kind == InstructionKind::kOffload ||
        instruction.kind == InstructionKind::kPrefetch) {
      EBB_RETURN_IF_ERROR(BeginCopy(block, instruction, i));
    }
    for (const Instruction::Replace& replace : instruction.replaces) {
      EBB_RETURN_IF_ERROR(Free(block, block.buffers[replace.old_buffer], i));
      EBB_RETURN_IF_ERROR(
          Allocate(block, block.buffers[replace.new_buffer], i));
    }
    EBB_RETURN_IF_ERROR(TouchOperands(block, instruction, i, true));
    EBB_RETURN_IF_ERROR(TouchWorkspace(block, instruction, i));
    for (const int32_t b : instruction.frees) {
      EBB_RETURN_IF_ERROR(Free(block, block.buffers[b], i));
    }
    return absl::OkStatus();
  }

  // Marks both ends. A copy is known by its place off the device: who awaits
  // the place awaits one copy, so it has one at a time.
  absl::Status BeginCopy(const Block& block, const Instruction& instruction,
                         int64_t i) {
    const bool is_offload = instruction.kind == InstructionKind::kOffload;
    const Operand& source = instruction.operands[0];
    const Operand& target = instruction.operands[1];
    const Operand& place = is_offload ? target : source;
    const Operand& device = is_offload ? source : target;
    const Buffer& off_device = block.buffers[place.buffer];
    const Buffer& on_device = block.buffers[device.buffer];
    if (!IsOffDevice(off_device.address.arena) ||
        on_device.address.arena != Arena::kStep || place.byte_offset != 0 ||
        SpanBytes(source) != SpanBytes(target)) {
      return Fault("is copied to something unlike it",
                   block.buffers[source.buffer], block, i);
    }
    const bool is_new =
        copies_
            .insert({{off_device.address.arena, off_device.address.At(i)},
                     {is_offload, on_device.address.At(i) + device.byte_offset,
                      SpanBytes(device), on_device.name}})
            .second;
    return is_new
               ? absl::OkStatus()
               : Fault("has a copy on its way already", off_device, block, i);
  }

  // Whether a copy is on its way from or to some of these bytes that must not
  // be touched: what it fills, and, if they are to change, what it reads.
  bool IsOnItsWay(Arena arena, int64_t base, int64_t bytes,
                  bool changes) const {
    for (const auto& [place, copy] : copies_) {
      const auto shares = [&](Arena other, int64_t other_base,
                              int64_t other_bytes) {
        return arena == other && base < other_base + other_bytes &&
               other_base < base + bytes;
      };
      if ((changes || !copy.is_offload) &&
          shares(Arena::kStep, copy.device_base, copy.bytes)) {
        return true;
      }
      if ((changes || copy.is_offload) &&
          shares(place.first, place.second, copy.bytes)) {
        return true;
      }
    }
    return false;
  }

  absl::Status Await(const Block& block, const Instruction& instruction,
                     int64_t i) {
    for (const Operand& operand : instruction.operands) {
      const Buffer& host = block.buffers[operand.buffer];
      EBB_RETURN_IF_ERROR(Find(block, host, i).status());
      const auto copy = copies_.find({host.address.arena, host.address.At(i)});
      if (copy == copies_.end()) {
        return Fault("is awaited, but no copy has begun", host, block, i);
      }
      copies_.erase(copy);
    }
    return absl::OkStatus();
  }

  absl::Status Allocate(const Block& block, const Buffer& buffer, int64_t i) {
    Storage storage{buffer.name, block.LayerOf(i, buffer.layer_offset),
                    buffer.bytes, buffer.memory_class};
    storage.block_bytes = BytesIn(buffer.address.arena, 1);
    return Add(buffer.address.arena, buffer.address.At(i), std::move(storage));
  }

  absl::Status Add(Arena arena, int64_t base, Storage storage) {
    const int64_t arena_bytes = ArenaBytes(program_, arena);
    if (base % storage.block_bytes != 0 ||
        storage.bytes % storage.block_bytes != 0) {
      return Fault("is not aligned", storage, base);
    }
    if (base < 0 || base + storage.bytes > arena_bytes) {
      return Fault("lies outside its arena", storage, base);
    }
    LiveMap& live = Live(arena);
    const auto next = live.lower_bound(base);
    if (next != live.end() && next->first < base + storage.bytes) {
      return Overlap(storage, base, next->second);
    }
    if (next != live.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second.bytes > base) {
        return Overlap(storage, base, previous->second);
      }
    }
    live.emplace(base, std::move(storage));
    return absl::OkStatus();
  }

  // Touches the operands that a replacement brings to life (`replaced`), or all
  // others.
  absl::Status TouchOperands(const Block& block, const Instruction& instruction,
                             int64_t i, bool replaced) {
    for (const Operand& operand : instruction.operands) {
      if (operand.buffer < 0) continue;
      const bool is_new =
          std::any_of(instruction.replaces.begin(), instruction.replaces.end(),
                      [&](const Instruction::Replace& replace) {
                        return replace.new_buffer == operand.buffer;
                      });
      if (is_new != replaced) continue;
      const Buffer& buffer = block.buffers[operand.buffer];
      const int64_t begin =
          operand.byte_offset + i * operand.byte_offset_stride;
      const int64_t end = begin + SpanBytes(operand);
      if (begin < 0 || end > buffer.bytes) {
        return Fault(absl::StrCat("does not hold its operand, bytes ", begin,
                                  " to ", end),
                     buffer, block, i);
      }
      EBB_ASSIGN_OR_RETURN(Storage* const storage, Find(block, buffer, i));
      if (IsOnItsWay(buffer.address.arena, buffer.address.At(i) + begin,
                     end - begin, operand.written)) {
        return Fault("is used while its copy is on the way", buffer, block, i);
      }
      const int64_t start = buffer.address.At(i) - found_base_;
      storage->reached = std::max(storage->reached, start + end);
    }
    return absl::OkStatus();
  }

  // A block of rows of every operand in scratch lies within that of the loop.
  static absl::Status CheckScratch(const Instruction& instruction,
                                   const Instruction& loop) {
    for (const Operand& operand : instruction.operands) {
      if (operand.buffer >= 0) continue;
      const int64_t row_bytes =
          operand.type.bytes() / NumLoopRows(operand.type);
      if (operand.scratch_offset < 0 ||
          operand.scratch_offset + loop.slice_rows * row_bytes >
              loop.thread_scratch_bytes) {
        return absl::InternalError(
            absl::StrCat("slot ", int{operand.slot},
                         " has neither a buffer nor room in the scratch of ",
                         loop.thread_scratch_bytes, " bytes"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status TouchWorkspace(const Block& block,
                              const Instruction& instruction, int64_t i) {
    const int64_t need = instruction.kind == InstructionKind::kCompute
                             ? WorkspaceBytes(instruction, backend_)
                             : 0;
    if (instruction.workspace < 0) {
      if (need == 0) return absl::OkStatus();
      return absl::InternalError(
          absl::StrCat("no workspace where the op asks for ", need, " bytes"));
    }
    const Buffer& buffer = block.buffers[instruction.workspace];
    if (AlignUp(need) != buffer.bytes) {
      return Fault(absl::StrCat("differs from the ", need,
                                " bytes of scratch that the op asks for"),
                   buffer, block, i);
    }
    EBB_ASSIGN_OR_RETURN(Storage* const storage, Find(block, buffer, i));
    storage->reached = buffer.bytes;
    return absl::OkStatus();
  }

  // Returns the live storage that the buffer is, or is a part of; its base is
  // in found_base_.
  absl::StatusOr<Storage*> Find(const Block& block, const Buffer& buffer,
                                int64_t i) {
    const int64_t base = buffer.address.At(i);
    LiveMap& live = Live(buffer.address.arena);
    auto found = live.upper_bound(base);
    if (found == live.begin()) {
      return Fault("is not alive", buffer, block, i);
    }
    --found;
    Storage& storage = found->second;
    if (storage.name != buffer.name ||
        (buffer.name.find('*') != std::string::npos &&
         storage.layer != block.LayerOf(i, buffer.layer_offset)) ||
        base + buffer.bytes > found->first + storage.bytes) {
      return Fault(absl::StrCat("is not alive (there is ", storage.name,
                                " of layer ", storage.layer, ")"),
                   buffer, block, i);
    }
    found_base_ = found->first;
    return &storage;
  }

  absl::Status Free(const Block& block, const Buffer& buffer, int64_t i) {
    EBB_ASSIGN_OR_RETURN(Storage* const storage, Find(block, buffer, i));
    if (found_base_ != buffer.address.At(i) || storage->bytes != buffer.bytes) {
      return Fault(
          absl::StrCat("is freed as a part of ", storage->bytes, " bytes"),
          buffer, block, i);
    }
    if (storage->memory_class != buffer.memory_class) {
      return Fault(
          absl::StrCat("is freed as ", MemoryClassName(buffer.memory_class),
                       " but was allocated as ",
                       MemoryClassName(storage->memory_class)),
          buffer, block, i);
    }
    if (IsOnItsWay(buffer.address.arena, found_base_, storage->bytes,
                   /*changes=*/true)) {
      return Fault("is freed while its copy is on the way", buffer, block, i);
    }
    EBB_RETURN_IF_ERROR(CheckReached(*storage));
    Live(buffer.address.arena).erase(found_base_);
    return absl::OkStatus();
  }

  static absl::Status CheckReached(const Storage& storage) {
    const int64_t num_blocks =
        (storage.reached + storage.block_bytes - 1) / storage.block_bytes;
    if (num_blocks * storage.block_bytes == storage.bytes) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat(
        "value ", storage.name, " of layer ", storage.layer, " has ",
        storage.bytes, " bytes but its operands bind ", storage.reached));
  }

  static absl::Status Overlap(const Storage& storage, int64_t base,
                              const Storage& other) {
    return Fault(absl::StrCat("overlaps ", other.name, " of layer ",
                              other.layer, ", which is alive"),
                 storage, base);
  }
  static absl::Status Fault(absl::string_view what, const Storage& storage,
                            int64_t base) {
    return absl::InternalError(
        absl::StrCat("value ", storage.name, " of layer ", storage.layer, " (",
                     storage.bytes, " bytes at ", base, ") ", what));
  }
  static absl::Status Fault(absl::string_view what, const Buffer& buffer,
                            const Block& block, int64_t i) {
    return Fault(what,
                 Storage{buffer.name, block.LayerOf(i, buffer.layer_offset),
                         buffer.bytes, buffer.memory_class, 0},
                 buffer.address.At(i));
  }

  const Program& program_;
  const Backend& backend_;
  struct Copy {
    bool is_offload = false;
    int64_t device_base = 0;
    int64_t bytes = 0;
    std::string name;
  };

  std::array<LiveMap, kNumArenas> live_;
  // On the way, by place off the device.
  std::map<std::pair<Arena, int64_t>, Copy> copies_;
  int64_t found_base_ = 0;
};

}  // namespace

absl::Status CheckStorage(const Program& program, const Backend& backend) {
  return Walk(program, backend).Run();
}

int64_t WorkspaceBytes(const Instruction& instruction, const Backend& backend) {
  if (instruction.slice_rows > 0) {
    return backend.threads * instruction.thread_scratch_bytes;
  }
  const OpDef& def = GetOpDef(instruction.op);
  if (def.workspace_bytes == nullptr) return 0;
  EBB_CHECK(def.num_slots() <= kMostSlots);
  std::array<TensorType, kMostSlots> types = {};
  uint32_t bound = 0;
  for (const Operand& operand : instruction.operands) {
    types[operand.slot] = operand.type;
    if (operand.gradient && operand.written) bound |= Reads(operand.slot);
  }
  return def.workspace_bytes(
      instruction.attrs, Types(types.data(), def.slots.size()), bound, backend);
}

}  // namespace ebb
