// Storage with guard bytes before and after, which show a kernel that writes
// out of its bounds.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/tensor.h"

namespace ebb {

class GuardedBuffer {
 public:
  // Fills the storage with `fill` and the guards with 0xff: read as floats
  // they are NaN, so that reading out of bounds shows too.
  GuardedBuffer(int64_t bytes, uint8_t fill);

  // kAlignment-aligned; the guard after it starts at the very next byte.
  void* data() { return begin_; }
  bool GuardsAreIntact() const;
  std::vector<uint8_t> Bytes() const { return {begin_, begin_ + bytes_}; }

 private:
  static constexpr uint8_t kGuard = 0xff;
  static constexpr int64_t kGuardBytes = 4 * kAlignment;

  int64_t bytes_;
  std::vector<uint8_t> memory_;
  uint8_t* begin_;
};

}  // namespace ebb
