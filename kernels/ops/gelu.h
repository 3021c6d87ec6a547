// GELU, tanh form, as GPT-2.
//   y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
// Source: Hendrycks & Gimpel 2016.
//   x_NF  input  f32 | bf16   y_NF  output  as x.  The gradient reads x.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::gelu {
enum Slots : int { kX, kY, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::gelu
