// Storage with guard bytes before and after.
#include "kernels/testing/guarded_buffer.h"

#include <algorithm>

namespace ebb {

GuardedBuffer::GuardedBuffer(int64_t bytes, uint8_t fill)
    : bytes_(bytes), memory_(bytes + 2 * kGuardBytes + kAlignment, kGuard) {
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  const int64_t offset = AlignUp(static_cast<int64_t>(address) + kGuardBytes) -
                         static_cast<int64_t>(address);
  begin_ = memory_.data() + offset;
  std::fill(begin_, begin_ + bytes_, fill);
}

bool GuardedBuffer::GuardsAreIntact() const {
  const auto intact = [](uint8_t byte) { return byte == kGuard; };
  return std::all_of(memory_.data(), static_cast<const uint8_t*>(begin_),
                     intact) &&
         std::all_of(static_cast<const uint8_t*>(begin_ + bytes_),
                     memory_.data() + memory_.size(), intact);
}

}  // namespace ebb
