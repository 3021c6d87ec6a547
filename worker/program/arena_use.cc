#include "worker/program/arena_use.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace ebb {

absl::Status ArenaUse::Begin(const Block& block, const Instruction& instruction,
                             int64_t i) {
  if (!block.Runs(instruction, i)) return absl::OkStatus();
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
    if (buffer.address.arena == arena_ &&
        in_use_.count(buffer.address.At(i)) == 0) {
      return absl::InternalError(
          absl::StrCat(buffer.name, " is used but not in use"));
    }
  }
  return absl::OkStatus();
}

absl::Status ArenaUse::End(const Block& block, const Instruction& instruction,
                           int64_t i) {
  if (!block.Runs(instruction, i)) return absl::OkStatus();
  for (int32_t buffer : instruction.frees) {
    EBB_RETURN_IF_ERROR(Free(block.buffers[buffer], i));
  }
  return absl::OkStatus();
}

std::optional<InUse> ArenaUse::Find(int64_t offset) const {
  const auto it = in_use_.find(offset);
  if (it == in_use_.end()) return std::nullopt;
  return it->second;
}

bool ArenaUse::IsFree(int64_t offset, int64_t bytes) const {
  return offset >= 0 && offset + bytes <= arena_bytes_ &&
         Overlapping(offset, bytes) == in_use_.end();
}

void ArenaUse::Replace(int64_t offset, const std::optional<InUse>& before,
                       const std::optional<InUse>& after) {
  if (before == after) return;
  if (before.has_value()) {
    Add(before->memory_class, -before->bytes);
    in_use_.erase(offset);
  }
  if (after.has_value()) {
    Add(after->memory_class, after->bytes);
    in_use_[offset] = *after;
  }
}

ArenaUse::Map::const_iterator ArenaUse::Overlapping(int64_t offset,
                                                    int64_t bytes) const {
  const auto next = in_use_.lower_bound(offset);
  if (next != in_use_.end() && next->first < offset + bytes) return next;
  if (next == in_use_.begin()) return in_use_.end();
  const auto before = std::prev(next);
  return before->first + before->second.bytes > offset ? before : in_use_.end();
}

absl::Status ArenaUse::Allocate(const Buffer& buffer, int64_t i) {
  const int64_t offset = buffer.address.At(i);
  const bool is_other = buffer.address.arena != arena_;
  if (is_other && buffer.address.arena != Arena::kState) {
    return absl::OkStatus();
  }
  if (is_other || offset < 0 || offset + buffer.bytes > arena_bytes_) {
    return absl::InternalError(
        absl::StrCat(buffer.name, " lies outside its arena"));
  }
  if (const auto other = Overlapping(offset, buffer.bytes);
      other != in_use_.end()) {
    return absl::InternalError(absl::StrCat(buffer.name, " at ", offset,
                                            " overlaps a storage in use at ",
                                            other->first));
  }
  in_use_[offset] = {buffer.bytes, buffer.memory_class};
  Add(buffer.memory_class, buffer.bytes);
  return absl::OkStatus();
}

absl::Status ArenaUse::Free(const Buffer& buffer, int64_t i) {
  if (buffer.address.arena != arena_) return absl::OkStatus();
  const auto it = in_use_.find(buffer.address.At(i));
  if (it == in_use_.end() || it->second.bytes != buffer.bytes) {
    return absl::InternalError(
        absl::StrCat(buffer.name, " is freed but not in use"));
  }
  Add(it->second.memory_class, -it->second.bytes);
  in_use_.erase(it);
  return absl::OkStatus();
}

}  // namespace ebb
