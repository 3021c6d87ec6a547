// What is in use in an arena while a program runs, byte for byte. The
// walks over a program (account, timeline) keep their books with it; it trusts
// no layout.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "worker/program/memory_class.h"
#include "worker/program/program.h"

namespace ebb {

// A storage in use.
struct InUse {
  int64_t bytes = 0;
  MemoryClass memory_class = MemoryClass::kLive;
  bool operator==(const InUse&) const = default;
};

class ArenaUse {
 public:
  // Of the step or the host arena; what lies in others is not looked at.
  explicit ArenaUse(int64_t arena_bytes, Arena arena = Arena::kStep)
      : arena_bytes_(arena_bytes), arena_(arena) {}

  // Brings to life what the instruction of the block's iteration i allocates;
  // then all that it uses must be in use: the moment that counts. An
  // instruction that does not run in that iteration does nothing.
  // Errors: INTERNAL if it allocates what is in use, frees what is not, or lets
  // two storages in use overlap.
  absl::Status Begin(const Block& block, const Instruction& instruction,
                     int64_t i);
  // Ends what the instruction frees.
  absl::Status End(const Block& block, const Instruction& instruction,
                   int64_t i);

  // Sums of what is in use.
  int64_t sum() const { return sum_; }
  const MemoryBytes& bytes() const { return bytes_; }

  // What begins at this offset.
  std::optional<InUse> Find(int64_t offset) const;
  // Whether these bytes lie in the arena and nothing in use shares them.
  bool IsFree(int64_t offset, int64_t bytes) const;
  // Puts `after` in the place of `before`, which is what Find(offset) gives.
  // REQUIRES: there is room for it.
  void Replace(int64_t offset, const std::optional<InUse>& before,
               const std::optional<InUse>& after);

 private:
  using Map = std::map<int64_t, InUse>;

  // A storage in use that shares some of these bytes, or end().
  Map::const_iterator Overlapping(int64_t offset, int64_t bytes) const;
  absl::Status Allocate(const Buffer& buffer, int64_t i);
  absl::Status Free(const Buffer& buffer, int64_t i);
  void Add(MemoryClass memory_class, int64_t bytes) {
    sum_ += bytes;
    bytes_[memory_class] += bytes;
  }

  int64_t arena_bytes_;
  Arena arena_;
  Map in_use_;  // by offset
  int64_t sum_ = 0;
  MemoryBytes bytes_;
};

}  // namespace ebb
