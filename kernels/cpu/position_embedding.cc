// Position embedding: the same rows added to every sequence; the gradient sums
// sequences in order, one position after the other.
#include "kernels/ops/position_embedding.h"

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
void AddRows(const float* a, const float* b, float* y, size_t size) {
  ForEachVector(size, [&](size_t i, auto count) HWY_ATTR {
    StoreSome(hn::Add(LoadSome(a + i, count), LoadSome(b + i, count)), y + i,
              count);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(AddRows);

void PositionEmbeddingForward(const OpCall& call, Stream) {
  const float* x = call.slots[position_embedding::kX].as<float>();
  const float* weight = call.slots[position_embedding::kWeight].as<float>();
  float* y = call.slots[position_embedding::kY].as<float>();
  const TensorType& type = call.slots[position_embedding::kX].type;
  const int64_t width = type.dims[1];
  ParallelFor(type.dims[0], RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t position = (call.row_offset + n) % call.attrs->seq_len;
      HWY_DYNAMIC_DISPATCH(AddRows)
      (x + n * width, weight + position * width, y + n * width, width);
    }
  });
}

void PositionEmbeddingBackward(const OpCall& call, Stream) {
  const float* dy = call.grads[position_embedding::kY].as<float>();
  float* dweight = call.grads[position_embedding::kWeight].as<float>();
  const TensorType& type = call.grads[position_embedding::kY].type;
  const int64_t width = type.dims[1];
  const int64_t seq_len = call.attrs->seq_len;
  if (dweight == nullptr) return;
  ParallelFor(seq_len, RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t sequence = 0; sequence < type.dims[0]; sequence += seq_len) {
      HWY_DYNAMIC_DISPATCH(AddRows)
      (dweight + begin * width, dy + (sequence + begin) * width,
       dweight + begin * width, (end - begin) * width);
    }
  });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
