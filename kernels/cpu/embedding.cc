// Token embedding: copies of rows, and rows added in the order of n. The
// gradient is split by columns, so that no two threads meet in a row and the
// order of additions never depends on threads.
#include "kernels/ops/embedding.h"

#include <cstring>

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// Adds columns begin .. end - 1 of all rows of dy [num_rows, width].
template <typename T>
void AddToRows(const int32_t* tokens, const T* dy, float* dweight,
               size_t num_rows, size_t width, size_t begin, size_t end) {
  for (size_t n = 0; n < num_rows; ++n) {
    const T* from = dy + n * width + begin;
    float* to = dweight + tokens[n] * width + begin;
    ForEachVector(end - begin, [&](size_t i, auto count) HWY_ATTR {
      StoreSome(hn::Add(LoadSome(to + i, count), LoadSome(from + i, count)),
                to + i, count);
    });
  }
}

void EmbeddingBackwardColumns(const OpCall& call, size_t begin, size_t end) {
  const Tensor& dy = call.grads[embedding::kY];
  WithElementType(dy.type.dtype, [&](auto element) {
    AddToRows(call.slots[embedding::kTokens].as<int32_t>(),
              dy.as<decltype(element)>(),
              call.grads[embedding::kWeight].as<float>(), dy.type.dims[0],
              dy.type.dims[1], begin, end);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {
namespace {

HWY_EXPORT(EmbeddingBackwardColumns);

// Columns that one thread takes at least: whole cache lines.
constexpr int64_t kColumnGrain = 64;

}  // namespace

void EmbeddingForward(const OpCall& call, Stream) {
  const int32_t* tokens = call.slots[embedding::kTokens].as<int32_t>();
  const char* weight = call.slots[embedding::kWeight].as<char>();
  char* y = call.slots[embedding::kY].as<char>();
  const TensorType& type = call.slots[embedding::kY].type;
  const int64_t width = type.dims[1];
  const int64_t row_bytes = width * DTypeBytes(type.dtype);
  ParallelFor(type.dims[0], RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      std::memcpy(y + n * row_bytes, weight + tokens[n] * row_bytes, row_bytes);
    }
  });
}

void EmbeddingBackward(const OpCall& call, Stream) {
  const TensorType& type = call.grads[embedding::kY].type;
  ParallelFor(type.dims[1], kColumnGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(EmbeddingBackwardColumns)(call, begin, end);
  });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
