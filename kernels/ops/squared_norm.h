// Adds the sum of squares of all elements to a running total, in double and in
// one fixed order (blocks of 4096 elements, then blocks in order), so that
// neither threads nor large values change it.
//   total += sum x^2
//   x  state (read)  f32   total  state  f64, one element
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::squared_norm {
enum Slots : int { kX, kTotal, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::squared_norm
