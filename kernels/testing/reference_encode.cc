// Reference of encode and decode: the nearest of all codes, found by looking at
// every one.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/f8.h"
#include "kernels/ops/decode.h"
#include "kernels/ops/encode.h"
#include "kernels/testing/reference_kernels.h"
#include "kernels/testing/tensor_elements.h"

namespace ebb::reference {
namespace {

// The nearest code's number; of two as near the one with an even code.
double NearestF8E4M3(double x) {
  if (!std::isfinite(x)) return std::numeric_limits<double>::quiet_NaN();
  double nearest = 0;
  double least = std::abs(x);
  for (int code = 1; code < kF8E4M3Nan; ++code) {
    const double number = ToFloat(F8E4M3{static_cast<uint8_t>(code)});
    const double distance = std::abs(std::abs(x) - number);
    if (distance < least || (distance == least && code % 2 == 0)) {
      nearest = number;
      least = distance;
    }
  }
  return std::copysign(nearest, x);
}

// The least power of two from 2^-126 on that brings the row within 448.
double RowScale(const double* x, int64_t size) {
  double largest = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (std::isfinite(x[i])) largest = std::max(largest, std::abs(x[i]));
  }
  double scale = std::ldexp(1.0, -126);
  while (largest > kLargestF8E4M3 * scale) scale *= 2;
  return scale;
}

}  // namespace

void EncodeForward(Call& c) {
  using namespace encode;
  const int64_t columns = RowElements(c.types[kX]);
  const int64_t rows = NumRows(c.types[kX]);
  Elements& error = c.slots[kError];
  error[kLargestError] = std::max(error[kLargestError], 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    const double* x = c.slots[kX].data() + row * columns;
    double* code = c.slots[kCode].data() + row * columns;
    const bool is_bf16 = c.attrs.result == DType::kBf16;
    const double scale = is_bf16 ? 1 : RowScale(x, columns);
    if (!is_bf16) c.slots[kScale][row] = scale;
    for (int64_t i = 0; i < columns; ++i) {
      code[i] =
          is_bf16 ? RoundedTo(DType::kBf16, x[i]) : NearestF8E4M3(x[i] / scale);
      if (!std::isfinite(x[i])) continue;
      const double lost = x[i] - code[i] * scale;
      error[kSquaredError] += lost * lost;
      error[kSquares] += x[i] * x[i];
      error[kLargestError] = std::max(error[kLargestError], std::abs(lost));
    }
  }
}

void DecodeForward(Call& c) {
  using namespace decode;
  const int64_t columns = encode::RowElements(c.types[kCode]);
  for (size_t i = 0; i < c.slots[kX].size(); ++i) {
    c.slots[kX][i] = c.slots[kCode][i];
    if (!c.slots[kScale].empty())
      c.slots[kX][i] *= c.slots[kScale][i / columns];
  }
}

}  // namespace ebb::reference
