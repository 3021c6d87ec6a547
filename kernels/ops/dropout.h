// Inverted dropout with a mask that is drawn, never stored.
//   y = x * keep / (1 - dropout),  keep from philox::Draw
//   x  input  f32 | bf16, [N, D] or [B, H, T, T]     y  output  as x
// Rows of one sequence are contiguous: elements per sequence are
// x.num_elements / (N / seq_len) or of one b. Attributes: dropout, seq_len, and
// num_heads for [B, H, T, T].
// The gradient reads nothing: the mask is drawn again.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::dropout {
enum Slots : int { kX, kY, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::dropout
