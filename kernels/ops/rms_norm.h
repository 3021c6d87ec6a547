// Root mean square normalisation over the model width.
//   rstd_n = 1 / sqrt(mean_d(x_nd^2) + epsilon)
//   y_nd   = x_nd * rstd_n * gain_d
// Source: Zhang & Sennrich 2019, eq. 4.
//   x_ND  input   f32 | bf16   gain_D  param  as x
//   y_ND  output  as x         rstd_N  aux    f32
// Attributes: epsilon. One fixed order of summation per row.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::rms_norm {
enum Slots : int { kX, kGain, kY, kRstd, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::rms_norm
