// ReLU and its bit mask, 32 elements a word. Rows are cut into words; what is
// left of a row has a word of its own, filled up with zeros.
#include "kernels/ops/relu.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/relu.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// The bits of a vector's mask, lane 0 lowest.
template <typename Mask>
HWY_INLINE uint32_t BitsOf(Mask mask) {
  uint64_t bits = 0;
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(Floats(), mask, bytes);
  std::memcpy(&bits, bytes, sizeof(bits));
  const size_t lanes = hn::Lanes(Floats());
  return static_cast<uint32_t>(bits & ((uint64_t{1} << lanes) - 1));
}

HWY_INLINE auto MaskOf(uint32_t bits) {
  const uint64_t wide = bits;
  uint8_t bytes[8];
  std::memcpy(bytes, &wide, sizeof(bytes));
  return hn::LoadMaskBits(Floats(), bytes);
}

// One word: `size` elements, at most relu::kMaskBits.
template <typename T>
HWY_INLINE uint32_t ForwardWord(const T* x, T* y, size_t size) {
  uint32_t word = 0;
  ForEachVector(size, [&](size_t i, auto count) HWY_ATTR {
    const FloatVec value = LoadSome(x + i, count);
    // NaN is not below: it stays.
    const auto dead = hn::Le(value, hn::Zero(Floats()));
    StoreSome(hn::IfThenZeroElse(dead, value), y + i, count);
    word |= BitsOf(hn::Not(dead)) << i;
  });
  return size == relu::kMaskBits ? word : word & ((uint32_t{1} << size) - 1);
}

template <typename T>
HWY_INLINE void BackwardWord(uint32_t word, const T* dy, T* dx, size_t size) {
  ForEachVector(size, [&](size_t i, auto count) HWY_ATTR {
    const auto alive = MaskOf(word >> i);
    StoreSome(hn::IfThenElseZero(alive, LoadSome(dy + i, count)), dx + i,
              count);
  });
}

// Calls body(word, first element, elements) for each word of rows [begin, end)
// of that many columns.
template <typename Body>
HWY_INLINE void ForEachWord(size_t columns, size_t begin, size_t end,
                            const Body& body) {
  const size_t width = (columns + relu::kMaskBits - 1) / relu::kMaskBits;
  for (size_t row = begin; row < end; ++row) {
    for (size_t w = 0; w < width; ++w) {
      const size_t column = w * relu::kMaskBits;
      body(row * width + w, row * columns + column,
           std::min<size_t>(relu::kMaskBits, columns - column));
    }
  }
}

void ReluForwardRows(const OpCall& call, size_t begin, size_t end) {
  uint32_t* const mask = call.slots[relu::kMask].as<uint32_t>();
  const size_t columns = call.slots[relu::kX].type.dims[1];
  WithElementType(call.slots[relu::kX].type.dtype, [&](auto element) {
    using T = decltype(element);
    const T* const x = call.slots[relu::kX].as<T>();
    T* const y = call.slots[relu::kY].as<T>();
    ForEachWord(columns, begin, end, [&](size_t word, size_t at, size_t size) {
      mask[word] = ForwardWord(x + at, y + at, size);
    });
  });
}

void ReluBackwardRows(const OpCall& call, size_t begin, size_t end) {
  const uint32_t* const mask = call.slots[relu::kMask].as<uint32_t>();
  const size_t columns = call.grads[relu::kX].type.dims[1];
  WithElementType(call.grads[relu::kX].type.dtype, [&](auto element) {
    using T = decltype(element);
    const T* const dy = call.grads[relu::kY].as<T>();
    T* const dx = call.grads[relu::kX].as<T>();
    ForEachWord(columns, begin, end, [&](size_t word, size_t at, size_t size) {
      BackwardWord(mask[word], dy + at, dx + at, size);
    });
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(ReluForwardRows);
HWY_EXPORT(ReluBackwardRows);

void ReluForward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[relu::kX].type;
  ParallelFor(type.dims[0], RowGrain(type.dims[1]),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(ReluForwardRows)(call, begin, end);
              });
}

void ReluBackward(const OpCall& call, Stream) {
  const TensorType& type = call.grads[relu::kX].type;
  ParallelFor(type.dims[0], RowGrain(type.dims[1]),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(ReluBackwardRows)(call, begin, end);
              });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
