// Rotary position embedding of queries and keys, which lie side by side with
// the values in the output of one product. Within a head of width W element i
// pairs with element i + W / 2, and pair i of token n turns by an angle that
// grows with the token's position t = n mod T:
//   angle_ti      = t * theta^(-2i / W),  0 <= i < W / 2
//   y_i           = x_i cos(angle_ti) - x_(i + W/2) sin(angle_ti)
//   y_(i + W/2)   = x_(i + W/2) cos(angle_ti) + x_i sin(angle_ti)
// Values are copied: so backward, which is the opposite turn and reads nothing
// but the gradient, never needs x, and of q, k and v one copy is saved.
// Source: Su et al. 2021, eq. 34, with the pairs of the published Llama
// weights (halves of a head, not neighbours).
//   x_N((H + 2K)W)  input  f32 | bf16: q, k, v     y  output  as x
// Attributes: num_heads, num_kv_heads, seq_len, rope_theta. Cosines and
// sines are formed in double and rounded to f32: right for angles to 2^24.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::rope {
enum Slots : int { kX, kY, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::rope
