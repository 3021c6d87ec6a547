// Position embedding: the same rows added to every sequence; the gradient sums
// sequences in order, one position after the other.
#include "kernels/ops/position_embedding.h"

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/position_embedding.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// y = a + b; y may be a.
template <typename A, typename B>
void AddElements(const A* a, const B* b, A* y, size_t size) {
  ForEachVector(size, [&](size_t i, auto count) HWY_ATTR {
    StoreSome(hn::Add(LoadSome(a + i, count), LoadSome(b + i, count)), y + i,
              count);
  });
}

void PositionEmbeddingForwardRows(const OpCall& call, int64_t begin,
                                  int64_t end) {
  const Tensor* slots = call.slots;
  const TensorType& type = slots[position_embedding::kX].type;
  const int64_t width = type.dims[1];
  WithElementType(type.dtype, [&](auto element) {
    using T = decltype(element);
    const T* x = slots[position_embedding::kX].as<T>();
    const T* weight = slots[position_embedding::kWeight].as<T>();
    T* y = slots[position_embedding::kY].as<T>();
    for (int64_t n = begin; n < end; ++n) {
      const int64_t position = (call.row_offset + n) % call.attrs->seq_len;
      AddElements(x + n * width, weight + position * width, y + n * width,
                  width);
    }
  });
}

// Positions begin .. end - 1 of all sequences.
void PositionEmbeddingBackwardRows(const OpCall& call, int64_t begin,
                                   int64_t end) {
  const Tensor& dy = call.grads[position_embedding::kY];
  float* dweight = call.grads[position_embedding::kWeight].as<float>();
  const int64_t width = dy.type.dims[1];
  WithElementType(dy.type.dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t sequence = 0; sequence < dy.type.dims[0];
         sequence += call.attrs->seq_len) {
      AddElements(dweight + begin * width,
                  dy.as<T>() + (sequence + begin) * width,
                  dweight + begin * width, (end - begin) * width);
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(PositionEmbeddingForwardRows);
HWY_EXPORT(PositionEmbeddingBackwardRows);

void PositionEmbeddingForward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[position_embedding::kX].type;
  ParallelFor(type.dims[0], RowGrain(type.dims[1]),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(PositionEmbeddingForwardRows)
                (call, begin, end);
              });
}

void PositionEmbeddingBackward(const OpCall& call, Stream) {
  if (!call.grads[position_embedding::kWeight].bound()) return;
  const TensorType& type = call.grads[position_embedding::kY].type;
  ParallelFor(call.attrs->seq_len, RowGrain(type.dims[1]),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(PositionEmbeddingBackwardRows)
                (call, begin, end);
              });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
