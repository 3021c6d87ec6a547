// ReLU with a bit mask.
//   y = max(x, 0)
// Source: Glorot, Bordes & Bengio 2011; that a bit an element is all that the
// gradient needs, Jain et al. 2018 (Gist, Binarize).
//   x_NF  input  f32 | bf16   y_NF  output  as x
//   mask_N,ceil(F/32)  aux  i32   bit f % 32 of word f / 32 is set where x > 0
//   or x is NaN.  The gradient reads the mask alone.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::relu {
enum Slots : int { kX, kY, kMask, kNumSlots };
constexpr int kMaskBits = 32;  // of a word
extern const OpDef kDef;
}  // namespace ebb::relu
