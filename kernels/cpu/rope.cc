// Rotary positions. Each thread holds the frequencies of a head's pairs in
// double; for every row it forms the cosines and sines of its angles in double
// vectors, rounds them to fp32 and turns all heads with them. Backward is the
// same with sines of the other sign.
#include "kernels/ops/rope.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/ops/workspace.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

#ifndef EBB_KERNELS_CPU_ROPE_ONCE
#define EBB_KERNELS_CPU_ROPE_ONCE
namespace ebb::cpu {

struct RopeViews {
  const void* from = nullptr;  // N heads W
  void* to = nullptr;          // N heads W, may be `from`
  DType dtype = DType::kNone;  // of both
  size_t num_turned = 0;       // heads of queries and keys
  size_t num_copied = 0;       // heads of values
  size_t half = 0;             // W / 2
  size_t seq_len = 0;
  size_t row_offset = 0;
  double theta = 0;
  double sign = 1;  // -1: backward
};

}  // namespace ebb::cpu
#endif  // EBB_KERNELS_CPU_ROPE_ONCE

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

using Doubles = hn::ScalableTag<double>;
using DoubleVec = hn::Vec<Doubles>;

// Cosines and `sign` times sines of position * frequencies[i], i < count in
// whole vectors; all three arrays have room for that.
// angle = n pi / 2 + r, |r| <= pi / 4, with pi / 2 in two parts of which the
// first has 33 bits; the polynomials are Taylor's to r^11 and r^12, which
// leaves 1e-11. Good for angles below 2^24 to 1e-8.
void CosinesAndSines(double position, const double* frequencies, size_t count,
                     double sign, float* cosines, float* sines) {
  const Doubles d;
  const hn::Rebind<float, Doubles> df;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const DoubleVec angle =
        hn::Mul(hn::Set(d, position), hn::Load(d, frequencies + i));
    const DoubleVec n =
        hn::Round(hn::Mul(angle, hn::Set(d, 0.63661977236758134308)));
    DoubleVec r = hn::NegMulAdd(n, hn::Set(d, 1.57079632673412561417), angle);
    r = hn::NegMulAdd(n, hn::Set(d, 6.07710050650619224932e-11), r);
    const DoubleVec square = hn::Mul(r, r);
    DoubleVec sine = hn::Set(d, -1.0 / 39916800);
    sine = hn::MulAdd(sine, square, hn::Set(d, 1.0 / 362880));
    sine = hn::MulAdd(sine, square, hn::Set(d, -1.0 / 5040));
    sine = hn::MulAdd(sine, square, hn::Set(d, 1.0 / 120));
    sine = hn::MulAdd(sine, square, hn::Set(d, -1.0 / 6));
    sine = hn::MulAdd(hn::Mul(sine, square), r, r);
    DoubleVec cosine = hn::Set(d, 1.0 / 479001600);
    cosine = hn::MulAdd(cosine, square, hn::Set(d, -1.0 / 3628800));
    cosine = hn::MulAdd(cosine, square, hn::Set(d, 1.0 / 40320));
    cosine = hn::MulAdd(cosine, square, hn::Set(d, -1.0 / 720));
    cosine = hn::MulAdd(cosine, square, hn::Set(d, 1.0 / 24));
    cosine = hn::MulAdd(cosine, square, hn::Set(d, -0.5));
    cosine = hn::MulAdd(cosine, square, hn::Set(d, 1.0));
    // Quarter turns: n mod 4 = 0: (c, s), 1: (-s, c), 2: (-c, -s), 3: (s, -c).
    const DoubleVec quarter = hn::NegMulAdd(
        hn::Set(d, 4.0), hn::Floor(hn::Mul(n, hn::Set(d, 0.25))), n);
    const auto is_odd = hn::Or(hn::Eq(quarter, hn::Set(d, 1.0)),
                               hn::Eq(quarter, hn::Set(d, 3.0)));
    const auto cosine_turns = hn::Or(hn::Eq(quarter, hn::Set(d, 1.0)),
                                     hn::Eq(quarter, hn::Set(d, 2.0)));
    const auto sine_turns = hn::Ge(quarter, hn::Set(d, 2.0));
    DoubleVec c = hn::IfThenElse(is_odd, sine, cosine);
    DoubleVec s = hn::IfThenElse(is_odd, cosine, sine);
    c = hn::IfThenElse(cosine_turns, hn::Neg(c), c);
    s = hn::Mul(hn::IfThenElse(sine_turns, hn::Neg(s), s), hn::Set(d, sign));
    hn::Store(hn::DemoteTo(df, c), df, cosines + i);
    hn::Store(hn::DemoteTo(df, s), df, sines + i);
  }
}

// Rows begin .. end - 1. `scratch` has RopeScratchBytes of the head width.
template <typename T>
void TurnElements(const RopeViews& views, size_t begin, size_t end,
                  void* scratch) {
  const size_t half = views.half;
  const size_t padded = (half + 15) / 16 * 16;
  double* frequencies = static_cast<double*>(scratch);
  float* cosines = reinterpret_cast<float*>(frequencies + padded);
  float* sines = cosines + padded;
  for (size_t i = 0; i < padded; ++i) {
    frequencies[i] = i < half
                         ? std::pow(views.theta, -static_cast<double>(i) /
                                                     static_cast<double>(half))
                         : 0.0;
  }
  const size_t turned = views.num_turned * 2 * half;
  const size_t copied = views.num_copied * 2 * half;
  for (size_t row = begin; row < end; ++row) {
    const size_t position = (views.row_offset + row) % views.seq_len;
    CosinesAndSines(static_cast<double>(position), frequencies, half,
                    views.sign, cosines, sines);
    const T* from = static_cast<const T*>(views.from) + row * (turned + copied);
    T* to = static_cast<T*>(views.to) + row * (turned + copied);
    for (size_t head = 0; head < turned; head += 2 * half) {
      ForEachVector(half, [&](size_t i, auto count) HWY_ATTR {
        const FloatVec a = LoadSome(from + head + i, count);
        const FloatVec b = LoadSome(from + head + half + i, count);
        const FloatVec c = LoadSome(cosines + i, count);
        const FloatVec s = LoadSome(sines + i, count);
        StoreSome(hn::NegMulAdd(b, s, hn::Mul(a, c)), to + head + i, count);
        StoreSome(hn::MulAdd(a, s, hn::Mul(b, c)), to + head + half + i, count);
      });
    }
    if (from != to) {
      std::memcpy(to + turned, from + turned, copied * sizeof(T));
    }
  }
}

void TurnRows(const RopeViews& views, size_t begin, size_t end, void* scratch) {
  WithElementType(views.dtype, [&](auto element) {
    TurnElements<decltype(element)>(views, begin, end, scratch);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {
namespace {

HWY_EXPORT(TurnRows);

void Turn(const OpCall& call, const Tensor& from, const Tensor& to,
          double sign) {
  const OpAttrs& attrs = *call.attrs;
  const int64_t width = from.type.dims[1];
  const int64_t head_width = width / (attrs.num_heads + 2 * attrs.num_kv_heads);
  const RopeViews views = {
      .from = from.data,
      .to = to.data,
      .dtype = from.type.dtype,
      .num_turned = static_cast<size_t>(attrs.num_heads + attrs.num_kv_heads),
      .num_copied = static_cast<size_t>(attrs.num_kv_heads),
      .half = static_cast<size_t>(head_width / 2),
      .seq_len = static_cast<size_t>(attrs.seq_len),
      .row_offset = static_cast<size_t>(call.row_offset),
      .theta = attrs.rope_theta,
      .sign = sign};
  const int64_t scratch_bytes = RopeScratchBytes(head_width);
  ParallelFor(from.type.dims[0], RowGrain(width),
              static_cast<int>(call.workspace_bytes / scratch_bytes),
              [&](int64_t begin, int64_t end, int thread) {
                HWY_DYNAMIC_DISPATCH(TurnRows)
                (views, begin, end,
                 static_cast<char*>(call.workspace) + thread * scratch_bytes);
              });
}

}  // namespace

void RopeForward(const OpCall& call, Stream) {
  Turn(call, call.slots[rope::kX], call.slots[rope::kY], 1);
}

void RopeBackward(const OpCall& call, Stream) {
  Turn(call, call.grads[rope::kY], call.grads[rope::kX], -1);
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
