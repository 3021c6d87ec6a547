// Encoding of saved activations, a row at a time: its largest element, then
// codes, and what they lose while a piece of the row is in the cache.
#include "kernels/ops/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/f8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/encode.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/f8-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// Elements of a piece of a row.
constexpr size_t kPiece = 256;

HWY_INLINE FloatVec ZeroUnlessFinite(FloatVec value) {
  return hn::IfThenElseZero(hn::IsFinite(value), value);
}

template <typename T>
HWY_INLINE float LargestOf(const T* x, size_t size) {
  FloatVec largest = hn::Zero(Floats());
  ForEachVector(size, [&](size_t i, auto count) HWY_ATTR {
    const FloatVec value = ZeroUnlessFinite(LoadSome(x + i, count));
    largest = hn::Max(largest, hn::Abs(value));
  });
  return MaxLanes(largest);
}

// Eight running sums, element i in sum i mod 8 whatever the vector width.
constexpr size_t kSums = 8;
HWY_INLINE void AddSquares(const float* x, size_t size, double* sums) {
  const hn::CappedTag<double, kSums> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + kSums <= size; i += kSums) {
    for (size_t part = 0; part < kSums; part += lanes) {
      const auto value = hn::PromoteTo(d, hn::LoadU(narrow, x + i + part));
      // The square of a float is exact in double.
      hn::StoreU(hn::Add(hn::Mul(value, value), hn::LoadU(d, sums + part)), d,
                 sums + part);
    }
  }
  for (size_t part = 0; i < size; ++i, ++part) {
    sums[part] += static_cast<double>(x[i]) * x[i];
  }
}

// What a row's codes lose. `encode(value, at, count)` stores the codes of a
// vector of elements from `at` on and returns them decoded.
template <typename T, typename Encode>
HWY_INLINE void EncodeRow(const T* x, size_t size, double* error,
                          const Encode& encode) {
  HWY_ALIGN float values[kPiece];
  HWY_ALIGN float lost[kPiece];
  HWY_ALIGN double squares[kSums] = {};
  HWY_ALIGN double squared_errors[kSums] = {};
  FloatVec largest = hn::Zero(Floats());
  for (size_t piece = 0; piece < size; piece += kPiece) {
    const size_t piece_size = std::min(kPiece, size - piece);
    ForEachVector(piece_size, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec value = LoadSome(x + piece + i, count);
      const FloatVec decoded = encode(value, piece + i, count);
      // Exact in fp32: the two lie within a factor of two, or one is zero.
      const FloatVec difference =
          hn::IfThenElseZero(hn::IsFinite(value), hn::Sub(value, decoded));
      largest = hn::Max(largest, hn::Abs(difference));
      StoreSome(ZeroUnlessFinite(value), values + i, count);
      StoreSome(difference, lost + i, count);
    });
    AddSquares(lost, piece_size, squared_errors);
    AddSquares(values, piece_size, squares);
  }
  error[encode::kSquaredError] = error[encode::kSquares] = 0;
  for (size_t part = 0; part < kSums; ++part) {
    error[encode::kSquaredError] += squared_errors[part];
    error[encode::kSquares] += squares[part];
  }
  error[encode::kLargestError] = MaxLanes(largest);
}

void EncodeRows(const OpCall& call, size_t begin, size_t end) {
  const TensorType& type = call.slots[encode::kX].type;
  const size_t columns = encode::RowElements(type);
  double* const errors = static_cast<double*>(call.workspace);
  if (call.attrs->result == DType::kBf16) {
    for (size_t row = begin; row < end; ++row) {
      Bf16* const code = call.slots[encode::kCode].as<Bf16>() + row * columns;
      EncodeRow(call.slots[encode::kX].as<float>() + row * columns, columns,
                errors + row * encode::kNumErrors,
                [&](FloatVec value, size_t at, auto count) HWY_ATTR {
                  StoreSome(value, code + at, count);
                  return WidenHalves(RoundToHalves(value));
                });
    }
    return;
  }
  WithElementType(type.dtype, [&](auto element) {
    using T = decltype(element);
    for (size_t row = begin; row < end; ++row) {
      const T* const x = call.slots[encode::kX].as<T>() + row * columns;
      F8E4M3* const code =
          call.slots[encode::kCode].as<F8E4M3>() + row * columns;
      const int exponent = F8ScaleExponent(LargestOf(x, columns));
      const float scale_of_row = PowerOfTwo(exponent);
      call.slots[encode::kScale].as<float>()[row] = scale_of_row;
      const FloatVec scale = hn::Set(Floats(), scale_of_row);
      const FloatVec inverse = hn::Set(Floats(), PowerOfTwo(-exponent));
      EncodeRow(x, columns, errors + row * encode::kNumErrors,
                [&](FloatVec value, size_t at, auto count) HWY_ATTR {
                  const auto codes = RoundToF8(hn::Mul(value, inverse));
                  StoreCodes(codes, code + at, count);
                  return hn::Mul(WidenF8(codes), scale);
                });
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(EncodeRows);

void EncodeForward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[encode::kX].type;
  const int64_t rows = encode::NumRows(type);
  ParallelFor(rows, RowGrain(encode::RowElements(type)),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(EncodeRows)(call, begin, end);
              });
  const double* const errors = static_cast<const double*>(call.workspace);
  double* const total = call.slots[encode::kError].as<double>();
  for (int64_t row = 0; row < rows; ++row) {
    const double* const error = errors + row * encode::kNumErrors;
    total[encode::kSquaredError] += error[encode::kSquaredError];
    total[encode::kSquares] += error[encode::kSquares];
    total[encode::kLargestError] =
        std::max(total[encode::kLargestError], error[encode::kLargestError]);
  }
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
