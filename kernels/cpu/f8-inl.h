// Vectors of fp32 to codes of fp8 e4m3 and back, with integer instructions that
// every instruction set has: the bits are those of kernels/f8.h. Compiled once
// per instruction set.
#include "hwy/highway.h"

// Included once per instruction set: this toggle stands for #pragma once.
#if defined(EBB_KERNELS_CPU_F8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EBB_KERNELS_CPU_F8_INL_H_
#undef EBB_KERNELS_CPU_F8_INL_H_
#else
#define EBB_KERNELS_CPU_F8_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/vector-inl.h"
#include "kernels/f8.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

using Codes = hn::RebindToUnsigned<Floats>;  // one code a lane, widened
using CodeVec = hn::Vec<Codes>;
using CodeBytes = hn::Rebind<uint8_t, Floats>;

// 2^exponent, exponent in [-126, 127].
HWY_INLINE float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// The least e of -126 and more with largest <= 448 * 2^e. 448 is 1.75 * 2^8.
HWY_INLINE int F8ScaleExponent(float largest) {
  const uint32_t bits = std::bit_cast<uint32_t>(largest);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const bool is_beyond = (bits & 0x7FFFFF) > 0x600000;  // of 1.75
  return std::max(-126, exponent - 8 + (is_beyond ? 1 : 0));
}

// As RoundToF8E4M3.
HWY_INLINE CodeVec RoundToF8(FloatVec value) {
  const Floats d;
  const Codes u;
  const auto all = hn::BitCast(u, value);
  const auto sign = hn::And(hn::ShiftRight<24>(all), hn::Set(u, 0x80u));
  const auto bits = hn::And(all, hn::Set(u, 0x7FFFFFFFu));
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(u, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7FFFFu)));
  const auto normal =
      hn::Sub(hn::ShiftRight<20>(rounded), hn::Set(u, (127u - 7) << 3));
  const auto magnitude = hn::BitCast(d, bits);
  const auto shift = hn::Set(d, 16384.0f);
  const auto subnormal =
      hn::Sub(hn::BitCast(u, hn::Add(magnitude, shift)), hn::BitCast(u, shift));
  const auto is_subnormal =
      hn::RebindMask(u, hn::Lt(magnitude, hn::Set(d, 1.0f / 64)));
  // False of NaN, too.
  const auto has_number =
      hn::RebindMask(u, hn::Le(magnitude, hn::Set(d, 464.0f)));
  const auto code = hn::IfThenElse(
      has_number, hn::IfThenElse(is_subnormal, subnormal, normal),
      hn::Set(u, uint32_t{kF8E4M3Nan}));
  return hn::Or(code, sign);
}

// As ToFloat.
HWY_INLINE FloatVec WidenF8(CodeVec codes) {
  const Floats d;
  const Codes u;
  const auto sign = hn::ShiftLeft<24>(hn::And(codes, hn::Set(u, 0x80u)));
  const auto magnitude = hn::And(codes, hn::Set(u, 0x7Fu));
  const auto normal =
      hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(u, (127u - 7) << 23));
  const auto subnormal = hn::BitCast(
      u, hn::Mul(hn::ConvertTo(
                     d, hn::BitCast(hn::RebindToSigned<Floats>(), magnitude)),
                 hn::Set(d, 1.0f / 512)));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(u, 8u));
  const auto is_nan = hn::Eq(magnitude, hn::Set(u, uint32_t{kF8E4M3Nan}));
  const auto bits =
      hn::IfThenElse(is_nan, hn::Set(u, 0x7FC00000u),
                     hn::IfThenElse(is_subnormal, subnormal, normal));
  return hn::BitCast(d, hn::Or(bits, sign));
}

HWY_INLINE CodeVec LoadCodes(const F8E4M3* from, AllLanes) {
  return hn::PromoteTo(Codes(), hn::LoadU(CodeBytes(), &from->bits));
}
HWY_INLINE CodeVec LoadCodes(const F8E4M3* from, size_t count) {
  HWY_ALIGN uint8_t lanes[hn::MaxLanes(CodeBytes())] = {};
  for (size_t i = 0; i < count; ++i) lanes[i] = from[i].bits;
  return hn::PromoteTo(Codes(), hn::Load(CodeBytes(), lanes));
}
HWY_INLINE void StoreCodes(CodeVec codes, F8E4M3* to, AllLanes) {
  // Nothing saturates: all are below 2^8.
  const auto bytes = hn::DemoteTo(
      CodeBytes(), hn::BitCast(hn::RebindToSigned<Floats>(), codes));
  hn::StoreU(bytes, CodeBytes(), &to->bits);
}
HWY_INLINE void StoreCodes(CodeVec codes, F8E4M3* to, size_t count) {
  HWY_ALIGN uint32_t lanes[hn::MaxLanes(Codes())];
  hn::Store(codes, Codes(), lanes);
  for (size_t i = 0; i < count; ++i)
    to[i].bits = static_cast<uint8_t>(lanes[i]);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
