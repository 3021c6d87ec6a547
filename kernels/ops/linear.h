// Matrix product with bias.
//   y_no = sum_i x_ni * weight_oi + bias_o
//   x_NI  input  f32 | bf16   weight_OI  param  as x   bias_O  param  as x,
//   optional
//   y_NO  output as x
// Gradients: dx = dy weight (reads weight); dweight += dy^T x (reads x);
// dbias_o += sum_n dy_no (reads neither), rows in one fixed order.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::linear {
enum Slots : int { kX, kWeight, kBias, kY, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::linear
