// Sets a value to zero: gradients and totals before the first microbatch.
//   x  state  any type
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::fill_zero {
enum Slots : int { kX, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::fill_zero
