// Scaled products of queries and keys, unfused attention.
//   scores_bhts = sum_w q_bthw * k_bsgw / sqrt(W),  g = h / (H / K)
//   q_ND, k_N(KW)  input  f32 | bf16, row-strided views allowed
//   scores_BHTT    output as q; entries with s > t are computed and ignored
// Attributes: num_heads, num_kv_heads, seq_len.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::attention_scores {
enum Slots : int { kQ, kK, kScores, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::attention_scores
