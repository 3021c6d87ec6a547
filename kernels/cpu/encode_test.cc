// Codes bit for bit: every number that there is to encode and to decode, in
// every position of a vector; and what encoding loses, in its order.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cpu/kernels.h"
#include "kernels/f8.h"
#include "kernels/ops/decode.h"
#include "kernels/ops/encode.h"

namespace ebb::cpu {
namespace {

struct Encoded {
  std::vector<F8E4M3> f8;
  std::vector<Bf16> bf16;
  std::vector<float> scale;
  double error[encode::kNumErrors] = {};
};

template <typename T>
constexpr DType kDTypeOf = std::is_same_v<T, Bf16> ? DType::kBf16 : DType::kF32;

template <typename T>
Encoded Encode(std::vector<T> x, int64_t columns, DType result) {
  const auto rows = static_cast<int64_t>(x.size()) / columns;
  const TensorType type(kDTypeOf<T>, rows, columns);
  Encoded encoded;
  encoded.scale.resize(rows);
  encoded.f8.resize(x.size());
  encoded.bf16.resize(x.size());
  std::vector<double> workspace(rows * encode::kNumErrors, std::nan(""));
  Tensor slots[encode::kNumSlots];
  slots[encode::kX] = {x.data(), type, columns};
  slots[encode::kCode] = {result == DType::kBf16
                              ? static_cast<void*>(encoded.bf16.data())
                              : encoded.f8.data(),
                          type.WithDType(result), columns};
  if (result != DType::kBf16) {
    slots[encode::kScale] = {encoded.scale.data(), encode::ScaleType(type), 1};
  }
  slots[encode::kError] = {encoded.error, {DType::kF64, encode::kNumErrors}, 1};
  const OpAttrs attrs = {.result = result};
  OpCall call;
  call.attrs = &attrs;
  call.slots = slots;
  call.workspace = workspace.data();
  EncodeForward(call, nullptr);
  return encoded;
}

template <typename T>
std::vector<T> Decode(Encoded encoded, int64_t columns, DType code) {
  const auto rows = static_cast<int64_t>(encoded.scale.size());
  const TensorType type(kDTypeOf<T>, rows, columns);
  std::vector<T> x(rows * columns);
  Tensor slots[decode::kNumSlots];
  slots[decode::kCode] = {code == DType::kBf16
                              ? static_cast<void*>(encoded.bf16.data())
                              : encoded.f8.data(),
                          type.WithDType(code), columns};
  if (code != DType::kBf16) {
    slots[decode::kScale] = {encoded.scale.data(), encode::ScaleType(type), 1};
  }
  slots[decode::kX] = {x.data(), type, columns};
  const OpAttrs attrs = {.result = kDTypeOf<T>};
  OpCall call;
  call.attrs = &attrs;
  call.slots = slots;
  DecodeForward(call, nullptr);
  return x;
}

// Bits of a number; all NaN are one.
uint32_t BitsOf(float number) {
  return std::isnan(number) ? 0x7FC00000 : std::bit_cast<uint32_t>(number);
}

// Rows of 8 to 70 codes: all of them in whole vectors and in tails.
TEST(Encode, AllCodesDecodeInEveryPosition) {
  for (int64_t columns = 8; columns <= 70; ++columns) {
    Encoded encoded;
    while (encoded.f8.size() < 256 ||
           static_cast<int64_t>(encoded.f8.size()) % columns != 0) {
      encoded.f8.push_back({static_cast<uint8_t>(encoded.f8.size())});
    }
    for (size_t row = 0; row < encoded.f8.size() / columns; ++row) {
      encoded.scale.push_back(std::exp2(static_cast<float>(row) - 4));
    }
    const auto x = Decode<float>(encoded, columns, DType::kF8E4M3);
    const auto narrow = Decode<Bf16>(encoded, columns, DType::kF8E4M3);
    for (size_t i = 0; i < x.size(); ++i) {
      const float number = ToFloat(encoded.f8[i]) * encoded.scale[i / columns];
      ASSERT_EQ(BitsOf(x[i]), BitsOf(number)) << columns << " " << i;
      // Four bits of mantissa fit.
      ASSERT_EQ(BitsOf(ToFloat(narrow[i])), BitsOf(number)) << columns;
    }
  }
}

// The row's scale by its definition.
double ScaleOf(const std::vector<Bf16>& x, size_t begin, size_t end) {
  double largest = 0;
  for (size_t i = begin; i < end; ++i) {
    const double number = ToFloat(x[i]);
    if (std::isfinite(number)) largest = std::max(largest, std::abs(number));
  }
  double scale = std::ldexp(1.0, -126);
  while (largest > kLargestF8E4M3 * scale) scale *= 2;
  return scale;
}

// Rounded to three bits of mantissa, this is 2^128.
constexpr float kRoundsUp = 0x1.Fp127f;

TEST(Encode, WhatRoundsBeyondFp32IsDecodedAsInfinite) {
  const std::vector<float> x = {kRoundsUp, -kRoundsUp, 0x1.Ep127f, 1};
  const Encoded encoded = Encode(x, 4, DType::kF8E4M3);
  const auto decoded = Decode<float>(encoded, 4, DType::kF8E4M3);
  EXPECT_EQ(decoded[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(decoded[1], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(decoded[2], 0x1.Ep127f);
  EXPECT_EQ(decoded[3], 0);
}

// All numbers of bf16, infinities and NaN among them, in rows that span from
// one exponent to many; as bf16 and as fp32.
TEST(Encode, EveryBf16NumberGetsTheNearestCode) {
  std::vector<Bf16> numbers(1 << 16);
  for (int bits = 0; bits < 1 << 16; ++bits) {
    numbers[bits].bits = static_cast<uint16_t>(bits);
    // What rounds up to 2^128 has no fp32 to be decoded to: see below.
    if (std::abs(ToFloat(numbers[bits])) >= kRoundsUp &&
        std::isfinite(ToFloat(numbers[bits])))
      numbers[bits].bits = 0;
  }
  for (const int64_t columns : {1, 37, 1024}) {
    std::vector<Bf16> x = numbers;
    while (static_cast<int64_t>(x.size()) % columns != 0) x.push_back({0});
    const Encoded encoded = Encode(x, columns, DType::kF8E4M3);
    std::vector<float> wide(x.size());
    std::transform(x.begin(), x.end(), wide.begin(),
                   [](Bf16 number) { return ToFloat(number); });
    const Encoded from_wide = Encode(wide, columns, DType::kF8E4M3);
    double squared_error = 0, squares = 0, largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t row = i / columns;
      if (i % columns == 0) {
        ASSERT_EQ(encoded.scale[row],
                  ScaleOf(x, i, std::min(i + columns, x.size())));
      }
      // A power of two divides without rounding, but for what is too small to
      // be seen beside the row's largest.
      const float scaled = wide[i] / encoded.scale[row];
      ASSERT_EQ(encoded.f8[i].bits, RoundToF8E4M3(scaled).bits) << wide[i];
      ASSERT_EQ(encoded.f8[i].bits, from_wide.f8[i].bits);
      if (!std::isfinite(wide[i])) continue;
      const double error =
          static_cast<double>(wide[i]) -
          static_cast<double>(ToFloat(encoded.f8[i])) * encoded.scale[row];
      squared_error += error * error;
      squares += static_cast<double>(wide[i]) * wide[i];
      largest = std::max(largest, std::abs(error));
    }
    EXPECT_EQ(encoded.error[encode::kLargestError], largest);
    EXPECT_NEAR(encoded.error[encode::kSquaredError] / squared_error, 1, 1e-12);
    EXPECT_NEAR(encoded.error[encode::kSquares] / squares, 1, 1e-12);
  }
}

TEST(Encode, Bf16IsRoundedAsTheFormatSays) {
  std::vector<float> x;
  for (uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
    for (uint32_t high = 0; high < 0x10000; high += 37) {
      x.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  // NaN whose bits carry over into those of a number if they are rounded.
  for (const uint32_t nan : {0xFFFFFFFFu, 0x7FFFFFFFu, 0x7F800001u}) {
    x.insert(x.end(), 20, std::bit_cast<float>(nan));
  }
  const auto columns = static_cast<int64_t>(x.size());
  const Encoded encoded = Encode(x, columns, DType::kBf16);
  const auto decoded = Decode<float>(encoded, columns, DType::kBf16);
  for (size_t i = 0; i < x.size(); ++i) {
    // A register may have made a signalling NaN a quiet one.
    ASSERT_EQ(BitsOf(ToFloat(encoded.bf16[i])),
              BitsOf(ToFloat(RoundToBf16(x[i]))))
        << x[i];
    ASSERT_EQ(BitsOf(decoded[i]), BitsOf(ToFloat(encoded.bf16[i])));
  }
}

// Relative to each number: half a unit of the mantissa's last bit.
TEST(Encode, ErrorStaysWithinTheFormatsBound) {
  std::vector<float> x(64 * 100);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = std::sin(static_cast<float>(i)) *
           std::exp2(static_cast<float>(i / 100) - 32);
  }
  const Encoded f8 = Encode(x, 100, DType::kF8E4M3);
  EXPECT_GT(f8.error[encode::kSquaredError], 0);
  EXPECT_LT(
      std::sqrt(f8.error[encode::kSquaredError] / f8.error[encode::kSquares]),
      1.0 / 16);
  const Encoded bf16 = Encode(x, 100, DType::kBf16);
  EXPECT_GT(bf16.error[encode::kSquaredError], 0);
  EXPECT_LT(std::sqrt(bf16.error[encode::kSquaredError] /
                      bf16.error[encode::kSquares]),
            1.0 / 256);
}

// Rows in order, and within a row element i in running sum i mod 8.
TEST(Encode, ErrorIsSummedInItsOrder) {
  constexpr size_t kColumns = 1003;
  std::vector<float> x(70 * kColumns);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = std::sin(static_cast<float>(i)) * std::exp2(i % 13 - 6.0f);
  }
  double squared_error = 0, squares = 0, largest = 0;
  {
    const Encoded encoded = Encode(x, kColumns, DType::kF8E4M3);
    const auto decoded = Decode<float>(encoded, kColumns, DType::kF8E4M3);
    for (size_t row = 0; row < x.size(); row += kColumns) {
      double errors[8] = {}, own_squares[8] = {};
      for (size_t i = 0; i < kColumns; ++i) {
        const double number = x[row + i];
        const double error = number - decoded[row + i];
        errors[i % 8] += error * error;
        own_squares[i % 8] += number * number;
        largest = std::max(largest, std::abs(error));
      }
      double row_error = 0, row_squares = 0;
      for (int sum = 0; sum < 8; ++sum) {
        row_error += errors[sum];
        row_squares += own_squares[sum];
      }
      squared_error += row_error;
      squares += row_squares;
    }
  }
  for (const int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    const Encoded encoded = Encode(x, kColumns, DType::kF8E4M3);
    EXPECT_EQ(encoded.error[encode::kSquaredError], squared_error);
    EXPECT_EQ(encoded.error[encode::kSquares], squares);
    EXPECT_EQ(encoded.error[encode::kLargestError], largest);
  }
}

}  // namespace
}  // namespace ebb::cpu
