// Reference of the ops that work on state: totals, the gradient norm, AdamW.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops/adamw.h"
#include "kernels/ops/clip_scale.h"
#include "kernels/ops/fill_zero.h"
#include "kernels/ops/squared_norm.h"
#include "kernels/ops/sum.h"
#include "kernels/testing/reference_kernels.h"

namespace ebb::reference {

void SumForward(Call& c) {
  using namespace sum;
  for (double x : c.slots[kX]) c.slots[kTotal][0] += x;
}

void FillZeroForward(Call& c) {
  using namespace fill_zero;
  std::fill(c.slots[kX].begin(), c.slots[kX].end(), 0);
}

void SquaredNormForward(Call& c) {
  using namespace squared_norm;
  for (double x : c.slots[kX]) c.slots[kTotal][0] += x * x;
}

void ClipScaleForward(Call& c) {
  using namespace clip_scale;
  const double norm = std::sqrt(c.slots[kTotal][0]);
  const double clip = c.attrs.clip;
  c.slots[kNorm][0] = norm;
  if (!std::isfinite(norm)) {
    c.slots[kScale][0] = std::numeric_limits<double>::quiet_NaN();
  } else {
    c.slots[kScale][0] = clip > 0 && norm > clip ? clip / norm : 1;
  }
}

void AdamwForward(Call& c) {
  using namespace adamw;
  const double scale = c.slots[kScale][0];
  if (!std::isfinite(scale)) return;
  const double beta1 = c.attrs.beta1, beta2 = c.attrs.beta2;
  const double t = static_cast<double>(c.scalars.step);
  for (size_t i = 0; i < c.slots[kParam].size(); ++i) {
    const double grad = c.slots[kGrad][i] * scale;
    double& m = c.slots[kM][i];
    double& v = c.slots[kV][i];
    double& param = c.slots[kParam][i];
    m = beta1 * m + (1 - beta1) * grad;
    v = beta2 * v + (1 - beta2) * grad * grad;
    const double m_hat = m / (1 - std::pow(beta1, t));
    const double v_hat = v / (1 - std::pow(beta2, t));
    param -= c.scalars.learning_rate *
             (c.attrs.weight_decay * param +
              m_hat / (std::sqrt(v_hat) + c.attrs.epsilon));
    if (!c.slots[kWeight].empty()) c.slots[kWeight][i] = param;
  }
}

}  // namespace ebb::reference
