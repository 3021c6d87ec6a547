// Lossy encoding of a saved activation: the same dims in narrower elements, and
// what that loses.
//   bf16      code_i = x_i rounded to nearest, ties to even
//   fp8_e4m3  code_i = x_i / scale_r rounded so, r the row of element i
//             scale_r = 2^e, the least e of -126 and more with
//                       max_i |x_i| <= 448 * 2^e over the row's finite elements
// A power of two scales without rounding, so every code is the nearest there
// is, and a row's range does not matter. What is not finite becomes NaN; what
// rounds to 2^128 has no fp32 and is decoded as infinite.
//   error += (sum_i (x_i - decoded_i)^2, sum_i x_i^2), in double, over finite
//            x_i; its third element becomes the largest |x_i - decoded_i| so
//            far
// Sums go row by row, within a row element i to running sum i mod 8: the same
// whatever threads and vectors.
//   x      input  f32 | bf16 (fp8_e4m3 alone), any rank; a row is the last dim
//   code   aux    as x, elements of attrs.result (bf16 or fp8_e4m3)
//   scale  aux    f32, dims of x without the last; bf16: unbound
//   error  state  f64 [3]
#pragma once

#include "kernels/ops/op_def.h"

namespace ebb::encode {
enum Slots : int { kX, kCode, kScale, kError, kNumSlots };
// Elements of `error`.
enum Errors : int { kSquaredError, kSquares, kLargestError, kNumErrors };
extern const OpDef kDef;

// Rows of a value that is encoded, and the type of their scales.
constexpr int64_t RowElements(const TensorType& x) {
  return x.dims[x.rank - 1];
}
constexpr int64_t NumRows(const TensorType& x) {
  return x.num_elements() / RowElements(x);
}
TensorType ScaleType(const TensorType& x);
}  // namespace ebb::encode
