// Cross-entropy and its gradient, a row of logits at a time.
#include "kernels/ops/cross_entropy.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

template <typename T>
void ForwardRows(const T* logits, const int32_t* targets, float* losses,
                 float* lse, size_t vocab, size_t begin, size_t end) {
  const Floats d;
  const FloatVec lowest = hn::Set(d, std::numeric_limits<float>::lowest());
  for (size_t n = begin; n < end; ++n) {
    const T* x = logits + n * vocab;
    FloatVec largest = lowest;
    ForEachVector(vocab, [&](size_t i, auto count) HWY_ATTR {
      largest = hn::Max(largest, OrElse(LoadSome(x + i, count), lowest, count));
    });
    const float offset = MaxLanes(largest);
    const FloatVec offsets = hn::Set(d, offset);
    FloatVec sum = hn::Zero(d);
    ForEachVector(vocab, [&](size_t i, auto count) HWY_ATTR {
      sum = hn::Add(
          sum, OrZero(Exp(hn::Sub(LoadSome(x + i, count), offsets)), count));
    });
    lse[n] = offset + std::log(SumLanes(sum));
    losses[n] = targets[n] < 0 ? 0.0f : lse[n] - ToFloat(x[targets[n]]);
  }
}

// dlogits may be logits.
template <typename T>
void BackwardRows(const T* logits, const int32_t* targets, const float* lse,
                  float loss_scale, T* dlogits, size_t vocab, size_t begin,
                  size_t end) {
  const Floats d;
  const FloatVec scale = hn::Set(d, loss_scale);
  for (size_t n = begin; n < end; ++n) {
    const T* x = logits + n * vocab;
    T* dx = dlogits + n * vocab;
    if (targets[n] < 0) {
      for (size_t v = 0; v < vocab; ++v) dx[v] = T();
      continue;
    }
    const FloatVec offsets = hn::Set(d, lse[n]);
    // The target's logit may be overwritten below, and its gradient must be
    // rounded once.
    const FloatVec target = hn::Set(d, ToFloat(x[targets[n]]));
    ForEachVector(vocab, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec p = Exp(hn::Sub(LoadSome(x + i, count), offsets));
      StoreSome(hn::Mul(p, scale), dx + i, count);
    });
    const FloatVec p = Exp(hn::Sub(target, offsets));
    StoreSome(hn::Sub(hn::Mul(p, scale), scale), dx + targets[n], size_t{1});
  }
}

void CrossEntropyForwardRows(const OpCall& call, size_t begin, size_t end) {
  const Tensor* slots = call.slots;
  const TensorType& type = slots[cross_entropy::kLogits].type;
  WithElementType(type.dtype, [&](auto element) {
    ForwardRows(slots[cross_entropy::kLogits].as<decltype(element)>(),
                slots[cross_entropy::kTargets].as<int32_t>(),
                slots[cross_entropy::kLosses].as<float>(),
                slots[cross_entropy::kLse].as<float>(), type.dims[1], begin,
                end);
  });
}

void CrossEntropyBackwardRows(const OpCall& call, size_t begin, size_t end) {
  const Tensor* slots = call.slots;
  const TensorType& type = slots[cross_entropy::kLogits].type;
  WithElementType(type.dtype, [&](auto element) {
    using T = decltype(element);
    BackwardRows(slots[cross_entropy::kLogits].as<T>(),
                 slots[cross_entropy::kTargets].as<int32_t>(),
                 slots[cross_entropy::kLse].as<float>(), call.attrs->loss_scale,
                 call.grads[cross_entropy::kLogits].as<T>(), type.dims[1],
                 begin, end);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(CrossEntropyForwardRows);
HWY_EXPORT(CrossEntropyBackwardRows);

void CrossEntropyForward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[cross_entropy::kLogits].type;
  ParallelFor(type.dims[0], RowGrain(type.dims[1]),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(CrossEntropyForwardRows)(call, begin, end);
              });
}

void CrossEntropyBackward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[cross_entropy::kLogits].type;
  ParallelFor(
      type.dims[0], RowGrain(type.dims[1]), [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(CrossEntropyBackwardRows)(call, begin, end);
      });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
