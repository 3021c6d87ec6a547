// AdamW, one pass over parameter, moments and the rounded weight. Bias
// corrections are formed in double once a call.
#include "kernels/ops/adamw.h"

#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

#ifndef EBB_KERNELS_CPU_ADAMW_ONCE
#define EBB_KERNELS_CPU_ADAMW_ONCE
namespace ebb::cpu {

struct AdamwFactors {
  float scale;            // of the gradient
  float beta1, beta2;     // of the old moments
  float one_minus_beta1;  // of the new gradient
  float one_minus_beta2;  // of its square
  float correction1;      // 1 / (1 - beta1^t)
  float correction2;      // 1 / (1 - beta2^t)
  float epsilon;
  float weight_decay;
  float learning_rate;
};

}  // namespace ebb::cpu
#endif  // EBB_KERNELS_CPU_ADAMW_ONCE

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// `weights` is null where the parameter is its own weight.
void AdamwRange(const AdamwFactors& factors, const float* grads, float* params,
                float* first_moments, float* second_moments, Bf16* weights,
                size_t size) {
  const Floats d;
  ForEachVector(size, [&](size_t i, auto count) HWY_ATTR {
    const FloatVec param = LoadSome(params + i, count);
    const FloatVec gradient =
        hn::Mul(LoadSome(grads + i, count), hn::Set(d, factors.scale));
    const FloatVec m = hn::MulAdd(
        LoadSome(first_moments + i, count), hn::Set(d, factors.beta1),
        hn::Mul(gradient, hn::Set(d, factors.one_minus_beta1)));
    const FloatVec v = hn::MulAdd(LoadSome(second_moments + i, count),
                                  hn::Set(d, factors.beta2),
                                  hn::Mul(hn::Mul(gradient, gradient),
                                          hn::Set(d, factors.one_minus_beta2)));
    const FloatVec root = hn::Sqrt(hn::Mul(v, hn::Set(d, factors.correction2)));
    const FloatVec direction =
        hn::Div(hn::Mul(m, hn::Set(d, factors.correction1)),
                hn::Add(root, hn::Set(d, factors.epsilon)));
    const FloatVec change =
        hn::MulAdd(param, hn::Set(d, factors.weight_decay), direction);
    const FloatVec updated =
        hn::NegMulAdd(change, hn::Set(d, factors.learning_rate), param);
    StoreSome(updated, params + i, count);
    if (weights != nullptr) StoreSome(updated, weights + i, count);
    StoreSome(m, first_moments + i, count);
    StoreSome(v, second_moments + i, count);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(AdamwRange);

void AdamwUpdate(const OpCall& call, Stream) {
  const double scale = *call.slots[adamw::kScale].as<double>();
  if (!std::isfinite(scale)) return;
  const double beta1 = call.attrs->beta1;
  const double beta2 = call.attrs->beta2;
  const double step = static_cast<double>(call.scalars->step);
  const AdamwFactors factors = {
      .scale = static_cast<float>(scale),
      .beta1 = call.attrs->beta1,
      .beta2 = call.attrs->beta2,
      .one_minus_beta1 = static_cast<float>(1 - beta1),
      .one_minus_beta2 = static_cast<float>(1 - beta2),
      .correction1 = static_cast<float>(1 / (1 - std::pow(beta1, step))),
      .correction2 = static_cast<float>(1 / (1 - std::pow(beta2, step))),
      .epsilon = call.attrs->epsilon,
      .weight_decay = call.attrs->weight_decay,
      .learning_rate = call.scalars->learning_rate,
  };
  const float* grads = call.slots[adamw::kGrad].as<float>();
  float* params = call.slots[adamw::kParam].as<float>();
  float* m = call.slots[adamw::kM].as<float>();
  float* v = call.slots[adamw::kV].as<float>();
  Bf16* weights = call.slots[adamw::kWeight].as<Bf16>();
  ParallelFor(call.slots[adamw::kParam].type.num_elements(), kElementGrain,
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(AdamwRange)
                (factors, grads + begin, params + begin, m + begin, v + begin,
                 weights == nullptr ? nullptr : weights + begin, end - begin);
              });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
