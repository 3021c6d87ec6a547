// Fused causal attention with dropout of the probabilities: online softmax, the
// T x T matrix never exists in memory.
// Source: Dao 2023 (FlashAttention-2), algorithms 1 and 2.
//   y_bthw   = sum_{s<=t} drop(softmax_s(q.k / sqrt(W))) v
//   lse_bht  = log sum_{s<=t} exp(q.k / sqrt(W)), before dropout
//   q_ND, k_N(KW), v_N(KW)  input  f32 | bf16, row-strided views allowed
//   y_ND  output as q       lse_BHT  aux  f32, always
// Attributes: num_heads, num_kv_heads, seq_len, dropout. Dropout draws element
// (h * T + t) * T + s of a sequence, as causal_softmax + dropout would.
// All three gradients read q, k, v, y and lse.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::attention {
enum Slots : int { kQ, kK, kV, kY, kLse, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::attention
