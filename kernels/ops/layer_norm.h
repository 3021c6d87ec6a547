// Layer normalisation over the model width.
//   mean_n = mean_d(x_nd)   rstd_n = 1 / sqrt(mean_d((x_nd - mean_n)^2) +
//   epsilon) y_nd   = (x_nd - mean_n) * rstd_n * gain_d + bias_d
// Source: Ba, Kiros & Hinton 2016, eq. 4.
//   x_ND  input  f32 | bf16   gain_D, bias_D  param  as x (bias optional)
//   y_ND  output as x         mean_N, rstd_N  aux    f32, always
// Attributes: epsilon. One fixed order of summation per row.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::layer_norm {
enum Slots : int { kX, kGain, kBias, kY, kMean, kRstd, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::layer_norm
