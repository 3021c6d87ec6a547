// Gradient norm and clipping factor: two scalars.
#include "kernels/ops/clip_scale.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/kernels.h"

namespace ebb::cpu {

void ClipScaleUpdate(const OpCall& call, Stream) {
  const double norm = std::sqrt(*call.slots[clip_scale::kTotal].as<double>());
  const double clip = call.attrs->clip;
  double scale = 1;
  if (!std::isfinite(norm)) {
    scale = std::numeric_limits<double>::quiet_NaN();
  } else if (clip > 0 && norm > clip) {
    scale = clip / norm;
  }
  *call.slots[clip_scale::kNorm].as<double>() = norm;
  *call.slots[clip_scale::kScale].as<double>() = scale;
}

}  // namespace ebb::cpu
