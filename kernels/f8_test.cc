// fp8 e4m3 against its definition: all codes, and every bf16 number rounded.
#include "kernels/f8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/bf16.h"

namespace ebb {
namespace {

// As the format's table defines a code.
double Defined(int code) {
  const int exponent = code >> 3 & 0xF, mantissa = code & 7;
  double number = exponent == 0 ? std::ldexp(mantissa / 8.0, -6)
                                : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  if (exponent == 0xF && mantissa == 7) number = std::nan("");
  return code & 0x80 ? -number : number;
}

TEST(F8E4M3, AllCodesAreWhatTheFormatDefines) {
  for (int code = 0; code < 256; ++code) {
    const float number = ToFloat(F8E4M3{static_cast<uint8_t>(code)});
    if (std::isnan(Defined(code))) {
      EXPECT_TRUE(std::isnan(number)) << code;
      continue;
    }
    EXPECT_EQ(number, Defined(code)) << code;
    EXPECT_EQ(std::signbit(number), code >= 0x80) << code;
    EXPECT_EQ(RoundToF8E4M3(number).bits, code);
  }
  EXPECT_EQ(ToFloat(F8E4M3{0x7E}), kLargestF8E4M3);
  EXPECT_EQ(ToFloat(F8E4M3{0x01}), std::ldexp(1.0f, -9));
}

// The nearest code, where 480 stands for what is beyond the largest; of two as
// near the even one.
int Nearest(double x) {
  int nearest = 0;
  const double magnitude = std::min(std::abs(x), 480.0);
  double least = magnitude;
  for (int code = 1; code <= kF8E4M3Nan; ++code) {
    const double number = code == kF8E4M3Nan ? 480 : Defined(code);
    const double distance = std::abs(magnitude - number);
    if (distance < least || (distance == least && code % 2 == 0)) {
      nearest = code;
      least = distance;
    }
  }
  return nearest | (std::signbit(x) ? 0x80 : 0);
}

TEST(F8E4M3, EveryBf16NumberRoundsToTheNearest) {
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const float number = ToFloat(Bf16{static_cast<uint16_t>(bits)});
    const int code = RoundToF8E4M3(number).bits;
    if (std::isfinite(number)) {
      ASSERT_EQ(code, Nearest(number)) << number;
    } else {
      ASSERT_EQ(code & 0x7F, kF8E4M3Nan) << number;
    }
  }
}

// Midpoints, and the fp32 numbers beside them.
TEST(F8E4M3, RoundsAroundEveryMiddle) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int code = 0; code < kF8E4M3Nan; ++code) {
    const double next = code + 1 == kF8E4M3Nan ? 480 : Defined(code + 1);
    const auto middle = static_cast<float>((Defined(code) + next) / 2);
    EXPECT_EQ(RoundToF8E4M3(std::nextafter(middle, 0.0f)).bits, code);
    EXPECT_EQ(RoundToF8E4M3(middle).bits, code + code % 2);
    EXPECT_EQ(RoundToF8E4M3(std::nextafter(middle, kInfinity)).bits, code + 1);
  }
}

}  // namespace
}  // namespace ebb
