#include "worker/program/account.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "worker/model/graph.h"

namespace ebb {
namespace {

class Walk {
 public:
  explicit Walk(const Program& program) : program_(program) {
    for (const ParameterLayout& layout : program.parameters) {
      state_[MemoryClass::kParameters] += layout.parameter_bytes();
      state_[MemoryClass::kOptimizer] += layout.optimizer_bytes();
    }
  }

  absl::StatusOr<ProgramAccount> Run() {
    for (size_t b = 0; b < program_.blocks.size(); ++b) {
      const Block& block = program_.blocks[b];
      const bool per_microbatch =
          static_cast<int>(b) >= program_.begin_microbatch &&
          static_cast<int>(b) < program_.end_microbatch;
      double times = per_microbatch ? program_.num_microbatches : 1;
      if (block.one_row) times /= block.count;
      for (int64_t n = 0; n < block.count; ++n) {
        const int64_t i = block.descending ? block.count - 1 - n : n;
        for (const Instruction& instruction : block.instructions) {
          if (absl::Status s = Step(block, instruction, i); !s.ok()) {
            return Annotate(
                s, absl::StrCat(block.name, " ", i, ": ", instruction.name));
          }
          CountFlops(instruction, times);
        }
      }
    }
    account_.memory[MemoryClass::kFragmentation] =
        program_.state_bytes + program_.step_bytes - account_.memory.Sum();
    account_.peak_bytes = program_.state_bytes + program_.step_bytes;
    return account_;
  }

 private:
  struct InUse {
    int64_t bytes;
    MemoryClass memory_class;
  };

  void CountFlops(const Instruction& instruction, double times) {
    if (instruction.phase == Phase::kRecompute) ++account_.num_recompute;
    if (instruction.phase == Phase::kUpdate) return;
    account_.recompute_flops += times * instruction.recompute_flops;
    account_.model_flops +=
        times * (instruction.flops - instruction.recompute_flops);
  }

  absl::Status Allocate(const Buffer& buffer, int64_t i) {
    const int64_t offset = buffer.address.At(i);
    if (buffer.address.arena != Arena::kStep || offset < 0 ||
        offset + buffer.bytes > program_.step_bytes) {
      return absl::InternalError(
          absl::StrCat(buffer.name, " lies outside the step arena"));
    }
    auto next = in_use_.lower_bound(offset);
    if (next != in_use_.end() && next->first < offset + buffer.bytes) {
      return absl::InternalError(absl::StrCat(buffer.name, " at ", offset,
                                              " overlaps a storage in use at ",
                                              next->first));
    }
    if (next != in_use_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second.bytes > offset) {
        return absl::InternalError(
            absl::StrCat(buffer.name, " at ", offset,
                         " overlaps a storage in use at ", before->first));
      }
    }
    in_use_[offset] = {buffer.bytes, buffer.memory_class};
    step_[buffer.memory_class] += buffer.bytes;
    return absl::OkStatus();
  }

  absl::Status Free(const Buffer& buffer, int64_t i) {
    auto it = in_use_.find(buffer.address.At(i));
    if (it == in_use_.end() || it->second.bytes != buffer.bytes) {
      return absl::InternalError(
          absl::StrCat(buffer.name, " is freed but not in use"));
    }
    step_[it->second.memory_class] -= it->second.bytes;
    in_use_.erase(it);
    return absl::OkStatus();
  }

  absl::Status Step(const Block& block, const Instruction& instruction,
                    int64_t i) {
    for (const Instruction::Replace& replace : instruction.replaces) {
      EBB_RETURN_IF_ERROR(Free(block.buffers[replace.old_buffer], i));
      EBB_RETURN_IF_ERROR(Allocate(block.buffers[replace.new_buffer], i));
    }
    for (int32_t buffer : instruction.allocates) {
      EBB_RETURN_IF_ERROR(Allocate(block.buffers[buffer], i));
    }
    for (const Operand& operand : instruction.operands) {
      if (operand.buffer < 0) continue;
      const Buffer& buffer = block.buffers[operand.buffer];
      if (buffer.address.arena == Arena::kStep &&
          in_use_.count(buffer.address.At(i)) == 0) {
        return absl::InternalError(
            absl::StrCat(buffer.name, " is used but not in use"));
      }
    }
    if (const int64_t use = step_.Sum(); use > account_.largest_use_bytes) {
      account_.largest_use_bytes = use;
      for (int c = 0; c < kNumMemoryClasses; ++c) {
        account_.memory.bytes[c] = step_.bytes[c] + state_.bytes[c];
      }
    }
    account_.saved_bytes =
        std::max(account_.saved_bytes, step_[MemoryClass::kSaved]);
    for (int32_t buffer : instruction.frees) {
      EBB_RETURN_IF_ERROR(Free(block.buffers[buffer], i));
    }
    return absl::OkStatus();
  }

  const Program& program_;
  MemoryBytes state_;
  MemoryBytes step_;
  std::map<int64_t, InUse> in_use_;
  ProgramAccount account_;
};

}  // namespace

absl::StatusOr<ProgramAccount> AccountFor(const Program& program) {
  return Walk(program).Run();
}

}  // namespace ebb
