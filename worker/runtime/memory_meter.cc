// What the state arena holds, and the summary of a step.
#include "worker/runtime/memory_meter.h"

namespace ebb {
namespace {

MemoryBytes StateBytes(const Program& program) {
  MemoryBytes state;
  for (const ParameterLayout& layout : program.parameters) {
    state[MemoryClass::kParameters] += layout.parameter_bytes();
    state[MemoryClass::kOptimizer] += layout.optimizer_bytes();
  }
  return state;
}

}  // namespace

MemoryMeter::MemoryMeter(const Program& program, int64_t arena_bytes)
    : arena_bytes_(arena_bytes), state_(StateBytes(program)) {
  Reset();
}

void MemoryMeter::Reset() {
  in_use_ = state_;
  peak_ = state_;
  sum_ = state_.Sum();
  peak_sum_ = sum_;
  saved_bytes_ = 0;
  host_ = {};
  disk_ = {};
}

MemoryBytes MemoryMeter::Peak() const {
  MemoryBytes peak = peak_;
  peak[MemoryClass::kFragmentation] = arena_bytes_ - peak_sum_;
  return peak;
}

}  // namespace ebb
