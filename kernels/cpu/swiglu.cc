// SwiGLU and its gradient. With s = 1 / (1 + exp(-gate)):
//   y = gate * s * up
//   dup = dy * gate * s      dgate = dy * up * (s + gate * s * (1 - s))
#include "kernels/ops/swiglu.h"

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/swiglu.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

struct Sigmoid {
  FloatVec e, s;  // e = exp(-gate), s = 1 / (1 + e)
};

HWY_INLINE Sigmoid SigmoidOf(FloatVec gate) {
  const Floats d;
  const FloatVec one = hn::Set(d, 1.0f);
  // Bounded, so that e * s stays finite; NaN passes.
  const FloatVec e = Exp(hn::Min(hn::Set(d, 80.0f), hn::Neg(gate)));
  return {e, hn::Div(one, hn::Add(one, e))};
}

// Rows begin .. end - 1 of `width` elements of y.
template <typename T>
void ForwardRows(const T* x, T* y, size_t width, size_t begin, size_t end) {
  for (size_t n = begin; n < end; ++n) {
    const T* gates = x + 2 * n * width;
    const T* ups = gates + width;
    T* to = y + n * width;
    ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec gate = LoadSome(gates + i, count);
      const FloatVec silu = hn::Mul(gate, SigmoidOf(gate).s);
      StoreSome(hn::Mul(silu, LoadSome(ups + i, count)), to + i, count);
    });
  }
}

// dx may be x.
template <typename T>
void BackwardRows(const T* x, const T* dy, T* dx, size_t width, size_t begin,
                  size_t end) {
  for (size_t n = begin; n < end; ++n) {
    const T* gates = x + 2 * n * width;
    const T* ups = gates + width;
    const T* from = dy + n * width;
    T* dgates = dx + 2 * n * width;
    T* dups = dgates + width;
    ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec gate = LoadSome(gates + i, count);
      const FloatVec up = LoadSome(ups + i, count);
      const FloatVec gradient = LoadSome(from + i, count);
      const Sigmoid sigmoid = SigmoidOf(gate);
      const FloatVec silu = hn::Mul(gate, sigmoid.s);
      // s + gate * s * (1 - s), 1 - s = e * s
      const FloatVec slope =
          hn::MulAdd(silu, hn::Mul(sigmoid.e, sigmoid.s), sigmoid.s);
      StoreSome(hn::Mul(hn::Mul(gradient, up), slope), dgates + i, count);
      StoreSome(hn::Mul(gradient, silu), dups + i, count);
    });
  }
}

void SwigluForwardRows(const OpCall& call, size_t begin, size_t end) {
  const TensorType& type = call.slots[swiglu::kY].type;
  WithElementType(type.dtype, [&](auto element) {
    using T = decltype(element);
    ForwardRows(call.slots[swiglu::kX].as<T>(), call.slots[swiglu::kY].as<T>(),
                type.dims[1], begin, end);
  });
}

void SwigluBackwardRows(const OpCall& call, size_t begin, size_t end) {
  const TensorType& type = call.grads[swiglu::kY].type;
  WithElementType(type.dtype, [&](auto element) {
    using T = decltype(element);
    BackwardRows(call.slots[swiglu::kX].as<T>(), call.grads[swiglu::kY].as<T>(),
                 call.grads[swiglu::kX].as<T>(), type.dims[1], begin, end);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(SwigluForwardRows);
HWY_EXPORT(SwigluBackwardRows);

void SwigluForward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[swiglu::kY].type;
  ParallelFor(type.dims[0], RowGrain(type.dims[1]),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(SwigluForwardRows)
                (call, begin, end);
              });
}

void SwigluBackward(const OpCall& call, Stream) {
  const TensorType& type = call.grads[swiglu::kY].type;
  ParallelFor(type.dims[0], RowGrain(type.dims[1]),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(SwigluBackwardRows)
                (call, begin, end);
              });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
