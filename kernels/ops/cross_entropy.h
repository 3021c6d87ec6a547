// Cross-entropy of logits against target ids, and its gradient.
//   losses_n = log sum_v exp(logits_nv) - logits[n][targets_n]; 0 where
//              targets_n is -1 (padding, counts nowhere)
//   lse_n    = log sum_v exp(logits_nv)
//   dlogits_nv = (exp(logits_nv - lse_n) - [v = targets_n]) * loss_scale; 0
//   where padded
//   logits_NV  input  f32 | bf16   targets_N  index  i32
//   losses_N   output f32, always  lse_N      aux    f32, always
// Attributes: loss_scale, the weight of one token in the mean: the loss is the
// end of the graph, so backward reads no gradient of losses.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::cross_entropy {
enum Slots : int { kLogits, kTargets, kLosses, kLse, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::cross_entropy
