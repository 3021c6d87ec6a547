// What the state arena holds, and the summary of a step.
#include "worker/runtime/memory_meter.h"

namespace ebb {
MemoryMeter::MemoryMeter(const Program& program, int64_t arena_bytes)
    : arena_bytes_(arena_bytes),
      state_(StateBytes(program, Arena::kState)),
      host_state_bytes_(StateBytes(program, Arena::kHostState).Sum()),
      disk_state_bytes_(StateBytes(program, Arena::kDiskState).Sum()) {
  Reset();
}

void MemoryMeter::Reset() {
  in_use_ = state_;
  peak_ = state_;
  sum_ = state_.Sum();
  peak_sum_ = sum_;
  saved_bytes_ = 0;
  host_ = {host_state_bytes_, host_state_bytes_};
  disk_ = {disk_state_bytes_, disk_state_bytes_};
}

MemoryBytes MemoryMeter::Peak() const {
  MemoryBytes peak = peak_;
  peak[MemoryClass::kFragmentation] = arena_bytes_ - peak_sum_;
  return peak;
}

}  // namespace ebb
