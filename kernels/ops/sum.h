// Adds the sum of all elements to a running total, in one fixed order.
//   total += sum_n x_n
//   x_N  input  f32 (no gradient is asked for)   total  state  f64, one element
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::sum {
enum Slots : int { kX, kTotal, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::sum
