// Causal softmax: a row of scores at a time, the part above the diagonal
// neither read nor used.
#include "kernels/ops/causal_softmax.h"

#include <limits>

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
void CausalSoftmaxForwardRows(const float* scores, float* probs, size_t seq_len,
                              size_t query, size_t begin, size_t end) {
  const Floats d;
  const FloatVec lowest = hn::Set(d, std::numeric_limits<float>::lowest());
  for (size_t row = begin; row < end; ++row) {
    const float* x = scores + row * seq_len;
    float* y = probs + row * seq_len;
    const size_t length = (query + row) % seq_len + 1;  // s <= t
    FloatVec largest = lowest;
    ForEachVector(length, [&](size_t i, auto count) HWY_ATTR {
      largest = hn::Max(largest, OrElse(LoadSome(x + i, count), lowest, count));
    });
    const FloatVec offset = hn::Set(d, MaxLanes(largest));
    FloatVec sum = hn::Zero(d);
    ForEachVector(length, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec e = Exp(hn::Sub(LoadSome(x + i, count), offset));
      sum = hn::Add(sum, OrZero(e, count));
      StoreSome(e, y + i, count);
    });
    const FloatVec inverse = hn::Set(d, 1.0f / SumLanes(sum));
    ForEachVector(length, [&](size_t i, auto count) HWY_ATTR {
      StoreSome(hn::Mul(LoadSome(y + i, count), inverse), y + i, count);
    });
    for (size_t s = length; s < seq_len; ++s) y[s] = 0.0f;
  }
}

// dx may be dy.
void CausalSoftmaxBackwardRows(const float* probs, const float* dprobs,
                               float* dscores, size_t seq_len, size_t query,
                               size_t begin, size_t end) {
  const Floats d;
  for (size_t row = begin; row < end; ++row) {
    const float* y = probs + row * seq_len;
    const float* dy = dprobs + row * seq_len;
    float* dx = dscores + row * seq_len;
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
    for (size_t s = length; s < seq_len; ++s) dx[s] = 0.0f;
  }
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
  const float* x = call.slots[causal_softmax::kX].as<float>();
  float* y = call.slots[causal_softmax::kY].as<float>();
  const int64_t seq_len = type.dims[3];
  ParallelFor(type.num_elements() / seq_len, RowGrain(seq_len),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(CausalSoftmaxForwardRows)
                (x, y, seq_len, call.row_offset % seq_len, begin, end);
              });
}

void CausalSoftmaxBackward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[causal_softmax::kY].type;
  const float* y = call.slots[causal_softmax::kY].as<float>();
  const float* dy = call.grads[causal_softmax::kY].as<float>();
  float* dx = call.grads[causal_softmax::kX].as<float>();
  const int64_t seq_len = type.dims[3];
  ParallelFor(type.num_elements() / seq_len, RowGrain(seq_len),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(CausalSoftmaxBackwardRows)
                (y, dy, dx, seq_len, call.row_offset % seq_len, begin, end);
              });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
