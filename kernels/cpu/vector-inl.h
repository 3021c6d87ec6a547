// Loads, stores, sums and the exponential of one vector width; compiled once
// per instruction set. Loop tails run the same code on vectors that are filled
// up with zeros, so that an element's value never depends on its position.
//
// Vectors are always fp32. bf16 elements are widened as they are loaded and
// rounded as they are stored, with integer instructions that every set has, so
// that all of them round alike (kernels/bf16.h).
#include "hwy/highway.h"

// Included once per instruction set: this toggle stands for #pragma once.
#if defined(EBB_KERNELS_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EBB_KERNELS_CPU_VECTOR_INL_H_
#undef EBB_KERNELS_CPU_VECTOR_INL_H_
#else
#define EBB_KERNELS_CPU_VECTOR_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;

// Number of elements of a full vector, as a type; a tail passes its count.
struct AllLanes {};

HWY_INLINE FloatVec LoadSome(const float* from, AllLanes) {
  return hn::LoadU(Floats(), from);
}
HWY_INLINE FloatVec LoadSome(const float* from, size_t count) {
  HWY_ALIGN float lanes[hn::MaxLanes(Floats())] = {};
  for (size_t i = 0; i < count; ++i) lanes[i] = from[i];
  return hn::Load(Floats(), lanes);
}
HWY_INLINE void StoreSome(FloatVec value, float* to, AllLanes) {
  hn::StoreU(value, Floats(), to);
}
HWY_INLINE void StoreSome(FloatVec value, float* to, size_t count) {
  HWY_ALIGN float lanes[hn::MaxLanes(Floats())];
  hn::Store(value, Floats(), lanes);
  for (size_t i = 0; i < count; ++i) to[i] = lanes[i];
}

using HalfWords = hn::Rebind<uint16_t, Floats>;

HWY_INLINE FloatVec WidenHalves(hn::Vec<HalfWords> halves) {
  const hn::RebindToUnsigned<Floats> words;
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(words, halves)));
}
// As RoundToBf16.
HWY_INLINE hn::Vec<HalfWords> RoundToHalves(FloatVec value) {
  const hn::RebindToUnsigned<Floats> d;
  const auto bits = hn::BitCast(d, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  const auto nearest = hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7FFFu)));
  const auto quiet = hn::Or(bits, hn::Set(d, 0x400000u));
  // Not Ne(value, value): its comparison is ordered, false of NaN.
  const auto is_nan = hn::RebindMask(d, hn::IsNaN(value));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, nearest));
  // Nothing saturates: all are below 2^16.
  return hn::DemoteTo(HalfWords(),
                      hn::BitCast(hn::RebindToSigned<Floats>(), upper));
}

HWY_INLINE FloatVec LoadSome(const Bf16* from, AllLanes) {
  return WidenHalves(hn::LoadU(HalfWords(), &from->bits));
}
HWY_INLINE FloatVec LoadSome(const Bf16* from, size_t count) {
  HWY_ALIGN uint16_t lanes[hn::MaxLanes(HalfWords())] = {};
  for (size_t i = 0; i < count; ++i) lanes[i] = from[i].bits;
  return WidenHalves(hn::Load(HalfWords(), lanes));
}
HWY_INLINE void StoreSome(FloatVec value, Bf16* to, AllLanes) {
  hn::StoreU(RoundToHalves(value), HalfWords(), &to->bits);
}
HWY_INLINE void StoreSome(FloatVec value, Bf16* to, size_t count) {
  HWY_ALIGN uint16_t lanes[hn::MaxLanes(HalfWords())];
  hn::Store(RoundToHalves(value), HalfWords(), lanes);
  for (size_t i = 0; i < count; ++i) to[i].bits = lanes[i];
}

// Sets the lanes beyond a tail to `other`.
HWY_INLINE FloatVec OrElse(FloatVec value, FloatVec, AllLanes) { return value; }
HWY_INLINE FloatVec OrElse(FloatVec value, FloatVec other, size_t count) {
  return hn::IfThenElse(hn::FirstN(Floats(), count), value, other);
}
HWY_INLINE FloatVec OrZero(FloatVec value, AllLanes) { return value; }
HWY_INLINE FloatVec OrZero(FloatVec value, size_t count) {
  return hn::IfThenElseZero(hn::FirstN(Floats(), count), value);
}

// Calls body(i, AllLanes) for whole vectors at i, then body(i, count) for the
// tail.
template <typename Body>
HWY_INLINE void ForEachVector(size_t size, const Body& body) {
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= size; i += lanes) body(i, AllLanes());
  if (i < size) body(i, size - i);
}

// e^x to 2e-7 relative. 0 below -86, infinite above 88.8, NaN stays NaN: a
// poisoned value must not vanish.
// x = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r) with p the
// interpolation of (e^r - 1 - r) / r^2 at five Chebyshev nodes.
HWY_INLINE FloatVec Exp(FloatVec x) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  // Operands in this order return x if it is NaN.
  const FloatVec clamped =
      hn::Min(hn::Set(d, 88.8f), hn::Max(hn::Set(d, -86.0f), x));
  const auto n = hn::NearestInt(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
  const FloatVec n_float = hn::ConvertTo(d, n);
  // ln 2 in two parts; the products with the first are exact.
  FloatVec r = hn::NegMulAdd(n_float, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(n_float, hn::Set(d, -2.12194440e-4f), r);
  FloatVec p = hn::Set(d, 0.0013926181810531727f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.008363177629994446f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.041666554627877414f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.16666576998242924f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
  // 2^n as 2 * 2^(n - 1): n = 128 has no float of its own.
  const auto half_scale =
      hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 126))));
  const FloatVec result = hn::Mul(hn::Add(p, p), half_scale);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -86.0f)), result);
}

// Sum of all lanes, in one fixed order per instruction set.
HWY_INLINE float SumLanes(FloatVec value) {
  return hn::GetLane(hn::SumOfLanes(Floats(), value));
}
HWY_INLINE float MaxLanes(FloatVec value) {
  return hn::GetLane(hn::MaxOfLanes(Floats(), value));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
