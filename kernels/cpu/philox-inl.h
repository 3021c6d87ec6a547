// Philox4x32-10 across vector lanes: one lane computes one block of
// kernels/philox.h, with the same words. Compiled once per instruction set.
#include "kernels/cpu/vector-inl.h"

// Included once per instruction set: this toggle stands for #pragma once.
#if defined(EBB_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EBB_KERNELS_CPU_PHILOX_INL_H_
#undef EBB_KERNELS_CPU_PHILOX_INL_H_
#else
#define EBB_KERNELS_CPU_PHILOX_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/philox.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

using Words = hn::ScalableTag<uint32_t>;
using WordVec = hn::Vec<Words>;

struct WordProduct {
  WordVec high, low;
};

// 32 x 32 -> 64 bits in every lane.
HWY_INLINE WordProduct MultiplyWords(WordVec a, WordVec b) {
  const Words d;
  const hn::RepartitionToWide<Words> wide;
  const auto even = hn::MulEven(a, b);
  const auto odd =
      hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), b);
  return {hn::OddEven(hn::BitCast(d, odd),
                      hn::BitCast(d, hn::ShiftRight<32>(even))),
          hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)),
                      hn::BitCast(d, even))};
}

// One stream of draws: the key and the upper half of the counter.
struct DrawStream {
  uint64_t key;
  uint32_t sequence;
  uint32_t step;
};

// Words that DrawWords may write beyond the count asked for: up to three
// before the first element and all but one block of a vector after the last.
constexpr size_t kDrawSlack = 4 + 4 * 64;

// Fills `words` (count + kDrawSlack of them) and returns where the word of
// element `first` lies; those of the next count - 1 elements follow.
HWY_INLINE const uint32_t* DrawWords(const DrawStream& stream, uint64_t first,
                                     size_t count, uint32_t* words) {
  const Words d;
  const size_t lanes = hn::Lanes(d);
  const uint64_t first_block = first / 4;
  const uint64_t end_block = (first + count + 3) / 4;
  const WordVec multiplier0 = hn::Set(d, philox::kMultiplier0);
  const WordVec multiplier1 = hn::Set(d, philox::kMultiplier1);
  uint32_t* to = words;
  for (uint64_t block = first_block; block < end_block; block += lanes) {
    const WordVec base = hn::Set(d, static_cast<uint32_t>(block));
    WordVec c0 = hn::Add(base, hn::Iota(d, 0));
    // Lanes whose low word wrapped round carry into the high one.
    WordVec c1 = hn::Set(d, static_cast<uint32_t>(block >> 32));
    c1 = hn::IfThenElse(hn::Lt(c0, base), hn::Add(c1, hn::Set(d, 1u)), c1);
    WordVec c2 = hn::Set(d, stream.sequence);
    WordVec c3 = hn::Set(d, stream.step);
    uint32_t key0 = static_cast<uint32_t>(stream.key);
    uint32_t key1 = static_cast<uint32_t>(stream.key >> 32);
    for (int round = 0; round < philox::kRounds; ++round) {
      const WordProduct product0 = MultiplyWords(c0, multiplier0);
      const WordProduct product1 = MultiplyWords(c2, multiplier1);
      c0 = hn::Xor(hn::Xor(product1.high, c1), hn::Set(d, key0));
      c2 = hn::Xor(hn::Xor(product0.high, c3), hn::Set(d, key1));
      c1 = product1.low;
      c3 = product0.low;
      key0 += philox::kWeyl0;
      key1 += philox::kWeyl1;
    }
    hn::StoreInterleaved4(c0, c1, c2, c3, d, to);
    to += 4 * lanes;
  }
  return words + first % 4;
}

// Multiplies by `scale` where the word says keep, gives 0 elsewhere.
HWY_INLINE FloatVec Drop(FloatVec value, const uint32_t* words,
                         WordVec threshold, FloatVec scale) {
  const auto dropped = hn::Lt(hn::LoadU(Words(), words), threshold);
  return hn::IfThenZeroElse(hn::RebindMask(Floats(), dropped),
                            hn::Mul(value, scale));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
