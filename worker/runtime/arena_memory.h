// The memory behind a rank's arenas.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "worker/program/program.h"
#include "worker/runtime/disk_file.h"

namespace ebb {

// One allocation of a device, freed with the object. The device must outlive
// it.
class ArenaMemory {
 public:
  ArenaMemory() = default;
  // Takes zeroed memory in which every page is populated.
  // Errors: RESOURCE_EXHAUSTED with need and have.
  static absl::StatusOr<ArenaMemory> Allocate(Device& device, int64_t bytes);
  ArenaMemory(ArenaMemory&& other) noexcept;
  ArenaMemory& operator=(ArenaMemory&& other) noexcept;
  ~ArenaMemory();

  // Gives back all but the first `bytes`, 1 to bytes(); data() stays.
  void Shrink(int64_t bytes);

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Where the arenas of a program lie. The training and the evaluation program
// of a job run on the same ones.
struct ArenaView {
  std::byte* state = nullptr;
  int64_t state_bytes = 0;
  std::byte* step = nullptr;
  int64_t step_bytes = 0;
  std::byte* host = nullptr;
  int64_t host_bytes = 0;
  DiskFile* disk = nullptr;
  int64_t disk_bytes = 0;
  std::byte* host_state = nullptr;
  int64_t host_state_bytes = 0;
  DiskFile* disk_state = nullptr;
  int64_t disk_state_bytes = 0;

  // Null for what is on disk, which is no memory.
  std::byte* At(Arena arena) const {
    switch (arena) {
      case Arena::kState:
        return state;
      case Arena::kStep:
        return step;
      case Arena::kHost:
        return host;
      case Arena::kHostState:
        return host_state;
      case Arena::kDisk:
      case Arena::kDiskState:
        break;
    }
    return nullptr;
  }
};

}  // namespace ebb
