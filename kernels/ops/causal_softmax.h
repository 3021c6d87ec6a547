// Softmax over s <= t of each row of scores; 0 where s > t.
//   y_bhts = exp(x_bhts - max_s) / sum_s
//   x_BHTT  input  f32 | bf16     y_BHTT  output  as x
// The gradient reads y alone: dx = y * (dy - sum_s(dy * y)).
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::causal_softmax {
enum Slots : int { kX, kY, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::causal_softmax
