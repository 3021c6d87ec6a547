// Counts the bytes in use, by memory class, while a program runs.
#pragma once

#include <cstdint>

#include "worker/program/memory_class.h"
#include "worker/program/program.h"

namespace ebb {

// Owned by an executor and fed by it instruction by instruction: a buffer
// enters before the instruction that it is allocated for and leaves after the
// one that frees it. The state arena counts as in use throughout. Host memory
// and disk are counted apart, whatever the class.
class MemoryMeter {
 public:
  // `arena_bytes`: of state and step arena.
  MemoryMeter(const Program& program, int64_t arena_bytes);

  // Empties the step arena: a new step begins.
  void Reset();
  void Enter(const Buffer& buffer) {
    if (IsOffDevice(buffer.address.arena)) {
      OffDevice& use = Of(buffer.address.arena);
      use.sum += buffer.bytes;
      if (use.sum > use.largest) use.largest = use.sum;
      return;
    }
    in_use_[buffer.memory_class] += buffer.bytes;
    sum_ += buffer.bytes;
  }
  void Leave(const Buffer& buffer) {
    if (IsOffDevice(buffer.address.arena)) {
      Of(buffer.address.arena).sum -= buffer.bytes;
      return;
    }
    in_use_[buffer.memory_class] -= buffer.bytes;
    sum_ -= buffer.bytes;
  }
  // An instruction runs with what is in use now.
  void Observe() {
    if (sum_ > peak_sum_) {
      peak_sum_ = sum_;
      peak_ = in_use_;
    }
    const int64_t saved = in_use_[MemoryClass::kSaved];
    if (saved > saved_bytes_) saved_bytes_ = saved;
  }

  // Bytes by class at the first instruction with the largest sum of this step.
  // What the arenas hold beyond that sum is fragmentation, so the classes add
  // up to the bytes of state and step arena.
  MemoryBytes Peak() const;
  // Largest sum of the class `saved` at any instruction of this step.
  int64_t saved_bytes() const { return saved_bytes_; }
  // Largest sum of bytes in use in host memory and on disk, state included.
  int64_t host_bytes() const { return host_.largest; }
  int64_t disk_bytes() const { return disk_.largest; }

 private:
  struct OffDevice {
    int64_t sum = 0;
    int64_t largest = 0;
  };
  OffDevice& Of(Arena arena) { return arena == Arena::kHost ? host_ : disk_; }

  int64_t arena_bytes_ = 0;
  MemoryBytes state_;
  int64_t host_state_bytes_ = 0;
  int64_t disk_state_bytes_ = 0;
  MemoryBytes in_use_;
  MemoryBytes peak_;
  int64_t sum_ = 0;
  int64_t peak_sum_ = 0;
  int64_t saved_bytes_ = 0;
  OffDevice host_;
  OffDevice disk_;
};

}  // namespace ebb
