// GELU and its gradient. The tanh form is a product with a logistic function,
//   x / 2 * (1 + tanh(u)) = x * s,  s = 1 / (1 + exp(-2u)),
//   u = sqrt(2 / pi) * (x + 0.044715 x^3)
// which needs one exponential and loses nothing for negative x. Gradient:
//   dx = dy * (s + x * s * (1 - s) * 2 u'),
//   u' = sqrt(2 / pi) * (1 + 3 * 0.044715 x^2)
#include "kernels/ops/gelu.h"

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gelu.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

struct Logistic {
  FloatVec e, s;  // e = exp(-2u), s = 1 / (1 + e)
};

HWY_INLINE Logistic LogisticOf(FloatVec x) {
  const Floats d;
  const FloatVec one = hn::Set(d, 1.0f);
  // -2 sqrt(2 / pi)
  const FloatVec factor = hn::Set(d, -1.5957691216057308f);
  const FloatVec cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.044715f), one);
  // Bounded, so that e * s stays finite; NaN passes.
  const FloatVec e =
      Exp(hn::Min(hn::Set(d, 80.0f), hn::Mul(hn::Mul(x, factor), cubic)));
  return {e, hn::Div(one, hn::Add(one, e))};
}

template <typename T>
void GeluForwardElements(const T* x, T* y, size_t size) {
  ForEachVector(size, [&](size_t i, auto count) HWY_ATTR {
    const FloatVec value = LoadSome(x + i, count);
    StoreSome(hn::Mul(value, LogisticOf(value).s), y + i, count);
  });
}

template <typename T>
void GeluBackwardElements(const T* x, const T* dy, T* dx, size_t size) {
  const Floats d;
  ForEachVector(size, [&](size_t i, auto count) HWY_ATTR {
    const FloatVec value = LoadSome(x + i, count);
    const Logistic logistic = LogisticOf(value);
    // 2 u' = 2 sqrt(2 / pi) (1 + 3 * 0.044715 x^2)
    const FloatVec slope =
        hn::MulAdd(hn::Mul(value, value), hn::Set(d, 0.21406445f),
                   hn::Set(d, 1.5957691216057308f));
    // s (1 - s) = s * (e * s)
    const FloatVec both = hn::Mul(logistic.s, hn::Mul(logistic.e, logistic.s));
    const FloatVec gradient =
        hn::MulAdd(hn::Mul(value, both), slope, logistic.s);
    StoreSome(hn::Mul(LoadSome(dy + i, count), gradient), dx + i, count);
  });
}

void GeluForwardRows(const OpCall& call, int64_t begin, int64_t end) {
  const Tensor& x = call.slots[gelu::kX];
  const Tensor& y = call.slots[gelu::kY];
  WithElementType(x.type.dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t n = begin; n < end; ++n) {
      GeluForwardElements(x.as<T>() + n * x.row_stride,
                          y.as<T>() + n * y.row_stride, x.type.dims[1]);
    }
  });
}

void GeluBackwardRows(const OpCall& call, int64_t begin, int64_t end) {
  const Tensor& x = call.slots[gelu::kX];
  const Tensor& dy = call.grads[gelu::kY];
  const Tensor& dx = call.grads[gelu::kX];
  WithElementType(x.type.dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t n = begin; n < end; ++n) {
      GeluBackwardElements(x.as<T>() + n * x.row_stride,
                           dy.as<T>() + n * dy.row_stride,
                           dx.as<T>() + n * dx.row_stride, x.type.dims[1]);
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(GeluForwardRows);
HWY_EXPORT(GeluBackwardRows);

void GeluForward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[gelu::kX].type;
  ParallelFor(type.dims[0], RowGrain(type.dims[1]),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(GeluForwardRows)(call, begin, end);
              });
}

void GeluBackward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[gelu::kX].type;
  ParallelFor(type.dims[0], RowGrain(type.dims[1]),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(GeluBackwardRows)(call, begin, end);
              });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
