// Dropout: forward and backward are the same map, with the mask drawn in both.
#include "kernels/ops/dropout.h"

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/philox.h"
#include "kernels/row_loop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// Elements first .. first + size - 1 of one sequence.
template <typename T>
void DropoutElements(const DrawStream& stream, uint64_t first, float dropout,
                     const T* x, T* y, size_t size) {
  constexpr size_t kChunk = 1024;
  HWY_ALIGN uint32_t buffer[kChunk + kDrawSlack];
  const WordVec threshold = hn::Set(Words(), philox::DropThreshold(dropout));
  const FloatVec scale = hn::Set(Floats(), philox::KeepScale(dropout));
  for (size_t at = 0; at < size; at += kChunk) {
    const size_t chunk = HWY_MIN(kChunk, size - at);
    const uint32_t* words = DrawWords(stream, first + at, chunk, buffer);
    ForEachVector(chunk, [&](size_t i, auto count) HWY_ATTR {
      StoreSome(Drop(LoadSome(x + at + i, count), words + i, threshold, scale),
                y + at + i, count);
    });
  }
}

void DropoutRange(uint64_t key, uint32_t sequence, uint32_t step,
                  uint64_t first, float dropout, const Tensor& x,
                  const Tensor& y, size_t at, size_t size) {
  WithElementType(x.type.dtype, [&](auto element) {
    using T = decltype(element);
    DropoutElements({key, sequence, step}, first, dropout, x.as<T>() + at,
                    y.as<T>() + at, size);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {
namespace {

HWY_EXPORT(DropoutRange);

void DropTensor(const OpCall& call, const Tensor& x, const Tensor& y) {
  const TensorType& type = x.type;
  // Rows as in row_loop.h: [N, D] has seq_len a sequence, [B, H, T, T] has
  // num_heads times as many.
  const bool is_attention = type.rank == 4;
  const int64_t rows_per_sequence =
      int64_t{call.attrs->seq_len} * (is_attention ? call.attrs->num_heads : 1);
  const int64_t row_elements = type.num_elements() / NumLoopRows(type);
  const int64_t size = rows_per_sequence * row_elements;
  const int64_t first_element =
      call.row_offset % rows_per_sequence * row_elements;
  const int64_t first_sequence =
      call.scalars->first_sequence + call.row_offset / rows_per_sequence;
  const uint64_t key = philox::Key(call.scalars->seed, call.value_key);
  ParallelFor(type.num_elements(), kElementGrain,
              [&](int64_t begin, int64_t end) {
                while (begin < end) {
                  const int64_t element = first_element + begin;
                  const int64_t sequence = element / size;
                  const int64_t stop =
                      std::min(end, (sequence + 1) * size - first_element);
                  HWY_DYNAMIC_DISPATCH(DropoutRange)
                  (key, static_cast<uint32_t>(first_sequence + sequence),
                   static_cast<uint32_t>(call.scalars->step), element % size,
                   call.attrs->dropout, x, y, begin, stop - begin);
                  begin = stop;
                }
              });
}

}  // namespace

void DropoutForward(const OpCall& call, Stream) {
  DropTensor(call, call.slots[dropout::kX], call.slots[dropout::kY]);
}

void DropoutBackward(const OpCall& call, Stream) {
  DropTensor(call, call.grads[dropout::kY], call.grads[dropout::kX]);
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
