// Learned position embedding, added to the stream.
//   y_nd = x_nd + weight[n mod T][d]
//   x_ND  input  f32 | bf16   weight_TD  param  as x   y_ND  output  as x
// weight may have more than seq_len rows (evaluation on shorter sequences).
// Attributes: seq_len. The gradient of x passes through.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::position_embedding {
enum Slots : int { kX, kWeight, kY, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::position_embedding
