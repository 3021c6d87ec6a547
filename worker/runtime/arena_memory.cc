// Ownership of a device allocation.
#include "worker/runtime/arena_memory.h"

#include <utility>

#include "kernels/status.h"

namespace ebb {

absl::StatusOr<ArenaMemory> ArenaMemory::Allocate(Device& device,
                                                  int64_t bytes) {
  ArenaMemory memory;
  if (bytes == 0) return memory;
  EBB_ASSIGN_OR_RETURN(void* const data, device.Allocate(bytes));
  memory.device_ = &device;
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}

ArenaMemory::ArenaMemory(ArenaMemory&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

ArenaMemory& ArenaMemory::operator=(ArenaMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void ArenaMemory::Shrink(int64_t bytes) {
  EBB_CHECK(bytes >= 1 && bytes <= bytes_);
  device_->Shrink(data_, bytes_, bytes);
  bytes_ = bytes;
}

ArenaMemory::~ArenaMemory() {
  if (data_ != nullptr) device_->Free(data_, bytes_);
}

}  // namespace ebb
