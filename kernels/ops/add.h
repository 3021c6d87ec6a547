// Sum of two values of equal type: residual connections and gradients of a
// value that is read twice.
//   y = a + b.   Both gradients pass through.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::add {
enum Slots : int { kA, kB, kY, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::add
