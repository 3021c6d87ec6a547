// Token embedding: row tokens_n of the table.
//   y_nd = weight[tokens_n][d]
//   tokens_N  index   i32, in [0, V)     weight_VD  param   f32 | bf16
//   y_ND      output  as weight
// The gradient adds rows of dy in the order of n, whatever the threads.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::embedding {
enum Slots : int { kTokens, kWeight, kY, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::embedding
