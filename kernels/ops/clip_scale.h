// Gradient norm and the factor that clips it.
//   norm = sqrt(total);  scale = clip > 0 and norm > clip ? clip / norm : 1
//   total  state (read) f64    norm, scale  state (written)  f64
// Source: Pascanu et al. 2013, algorithm 1. Attributes: clip. A norm that is
// not finite gives a scale of NaN: the update then leaves parameters and
// moments as they are and the step counts as skipped.
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::clip_scale {
enum Slots : int { kTotal, kNorm, kScale, kNumSlots };
extern const OpDef kDef;
}  // namespace ebb::clip_scale
