// Gated feed-forward activation: the product of one half of x with the SiLU of
// the other.
//   y_nf = silu(gate_nf) * up_nf,  silu(g) = g / (1 + exp(-g)),
//   gate_nf = x_nf,  up_nf = x_n(F + f)
// Source: Shazeer 2020, eq. 6 (SwiGLU, beta 1).
//   x_N(2F)  input  f32 | bf16: gate, up    y_NF  output  as x
// The gradient reads x.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::swiglu {
enum Slots : int { kX, kY, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::swiglu
