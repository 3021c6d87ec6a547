// AdamW with decoupled weight decay, one pass over a parameter.
//   g = grad * scale;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   param -= lr * (weight_decay * param + (m / (1 - b1^t)) / (sqrt(v / (1 -
//   b2^t)) + epsilon))
// Source: Loshchilov & Hutter 2019, algorithm 2 (schedule multiplier folded
// into lr).
//   param, m, v  state  f32   grad  state (read)  f32   scale  state (read) f64
//   weight  state (written)  bf16, optional: the new param rounded, what the
//   model computes with where it is stored narrower than its master
// Attributes: beta1, beta2, epsilon, weight_decay. Scalars: step (t),
// learning_rate. A scale that is not finite changes nothing.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::adamw {
enum Slots : int { kParam, kGrad, kM, kV, kScale, kWeight, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::adamw
