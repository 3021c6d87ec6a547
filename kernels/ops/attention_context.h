// Context of unfused attention: probabilities times values.
//   y_bthw = sum_s probs_bhts * v_bsgw,  g = h / (H / K)
//   probs_BHTT  input  as v   v_N(KW)  input  f32 | bf16, row-strided view
//   allowed     y_ND  output as v
// Attributes: num_heads, num_kv_heads, seq_len.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::attention_context {
enum Slots : int { kProbs, kV, kY, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::attention_context
