// Causal softmax: a row of scores at a time, the part above the diagonal
// neither read nor used.
#include "kernels/ops/causal_softmax.h"

#include <limits>
#include <type_traits>

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/causal_softmax.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// Rows begin .. end - 1 of all B * H * T rows, the first of which is query
// `query`; x may be y.
template <typename T>
void ForwardRows(const T* scores, T* probs, size_t seq_len, size_t query,
                 size_t begin, size_t end) {
  const Floats d;
  const FloatVec lowest = hn::Set(d, std::numeric_limits<float>::lowest());
  for (size_t row = begin; row < end; ++row) {
    const T* x = scores + row * seq_len;
    T* y = probs + row * seq_len;
    const size_t length = (query + row) % seq_len + 1;  // s <= t
    FloatVec largest = lowest;
    ForEachVector(length, [&](size_t i, auto count) HWY_ATTR {
      largest = hn::Max(largest, OrElse(LoadSome(x + i, count), lowest, count));
    });
    const FloatVec offset = hn::Set(d, MaxLanes(largest));
    // Terms that a store would round are computed twice: only a result may be
    // rounded.
    constexpr bool kKeepsTerms = std::is_same_v<T, float>;
    FloatVec sum = hn::Zero(d);
    ForEachVector(length, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec e = Exp(hn::Sub(LoadSome(x + i, count), offset));
      sum = hn::Add(sum, OrZero(e, count));
      if constexpr (kKeepsTerms) StoreSome(e, y + i, count);
    });
    const FloatVec inverse = hn::Set(d, 1.0f / SumLanes(sum));
    ForEachVector(length, [&](size_t i, auto count) HWY_ATTR {
      FloatVec e;
      if constexpr (kKeepsTerms) {
        e = LoadSome(y + i, count);
      } else {
        e = Exp(hn::Sub(LoadSome(x + i, count), offset));
      }
      StoreSome(hn::Mul(e, inverse), y + i, count);
    });
    for (size_t s = length; s < seq_len; ++s) y[s] = T();
  }
}

// dx may be dy.
template <typename T>
void BackwardRows(const T* probs, const T* dprobs, T* dscores, size_t seq_len,
                  size_t query, size_t begin, size_t end) {
  const Floats d;
  for (size_t row = begin; row < end; ++row) {
    const T* y = probs + row * seq_len;
    const T* dy = dprobs + row * seq_len;
    T* dx = dscores + row * seq_len;
    const size_t length = (query + row) % seq_len + 1;
    FloatVec sum = hn::Zero(d);
    ForEachVector(length, [&](size_t i, auto count) HWY_ATTR {
      sum = hn::MulAdd(LoadSome(y + i, count), LoadSome(dy + i, count), sum);
    });
    const FloatVec dot = hn::Set(d, SumLanes(sum));
    ForEachVector(length, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec difference = hn::Sub(LoadSome(dy + i, count), dot);
      StoreSome(hn::Mul(LoadSome(y + i, count), difference), dx + i, count);
    });
    for (size_t s = length; s < seq_len; ++s) dx[s] = T();
  }
}

void CausalSoftmaxForwardRows(const OpCall& call, size_t begin, size_t end) {
  const TensorType& type = call.slots[causal_softmax::kX].type;
  WithElementType(type.dtype, [&](auto element) {
    using T = decltype(element);
    ForwardRows(call.slots[causal_softmax::kX].as<T>(),
                call.slots[causal_softmax::kY].as<T>(), type.dims[3],
                call.row_offset % type.dims[3], begin, end);
  });
}

void CausalSoftmaxBackwardRows(const OpCall& call, size_t begin, size_t end) {
  const TensorType& type = call.slots[causal_softmax::kY].type;
  WithElementType(type.dtype, [&](auto element) {
    using T = decltype(element);
    BackwardRows(call.slots[causal_softmax::kY].as<T>(),
                 call.grads[causal_softmax::kY].as<T>(),
                 call.grads[causal_softmax::kX].as<T>(), type.dims[3],
                 call.row_offset % type.dims[3], begin, end);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(CausalSoftmaxForwardRows);
HWY_EXPORT(CausalSoftmaxBackwardRows);

void CausalSoftmaxForward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[causal_softmax::kX].type;
  const int64_t seq_len = type.dims[3];
  ParallelFor(type.num_elements() / seq_len, RowGrain(seq_len),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(CausalSoftmaxForwardRows)
                (call, begin, end);
              });
}

void CausalSoftmaxBackward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[causal_softmax::kY].type;
  const int64_t seq_len = type.dims[3];
  ParallelFor(type.num_elements() / seq_len, RowGrain(seq_len),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(CausalSoftmaxBackwardRows)
                (call, begin, end);
              });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
