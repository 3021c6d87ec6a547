// FLOPs of an op, or of gradients, that compute nothing: copies, and gradients
// that pass through or do not exist.
#pragma once

#include <cstdint>

#include "kernels/ops/op_def.h"

namespace ebb {

inline int64_t NoFlops(const OpAttrs&, Types) { return 0; }
inline int64_t NoGradientFlops(const OpAttrs&, Types, uint32_t) { return 0; }

}  // namespace ebb
