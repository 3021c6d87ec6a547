// Rounding to bf16: to nearest, ties to even, at the edges of the format.
#include "kernels/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ebb {
namespace {

float Rounded(float value) { return ToFloat(RoundToBf16(value)); }

TEST(Bf16, EveryValueIsItsOwnRounding) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const Bf16 value = {static_cast<uint16_t>(bits)};
    const float wide = ToFloat(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(Rounded(wide))) << bits;
    } else {
      EXPECT_EQ(RoundToBf16(wide).bits, bits);
    }
  }
}

TEST(Bf16, RoundsToTheNearestAndTiesToEven) {
  // Between 1 and 2 the values lie 1/128 apart.
  EXPECT_EQ(Rounded(1 + 0.9f / 256), 1.0f);
  EXPECT_EQ(Rounded(1 + 1.0f / 256), 1.0f);
  EXPECT_EQ(Rounded(1 + 1.1f / 256), 1 + 1.0f / 128);
  EXPECT_EQ(Rounded(1 + 3.0f / 256), 1 + 2.0f / 128);
  EXPECT_EQ(Rounded(-1 - 1.1f / 256), -1 - 1.0f / 128);
  EXPECT_EQ(Rounded(2 - 1.0f / 256), 2.0f);
  EXPECT_EQ(Rounded(std::numeric_limits<float>::denorm_min()), 0.0f);
}

TEST(Bf16, OverflowsToInfinityAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Rounded(std::numeric_limits<float>::max()), infinity);
  EXPECT_EQ(Rounded(-infinity), -infinity);
  // A NaN whose payload lies in the lower half alone.
  EXPECT_TRUE(std::isnan(Rounded(std::bit_cast<float>(0x7F800001u))));
  EXPECT_TRUE(std::isnan(Rounded(std::bit_cast<float>(0xFFFFFFFFu))));
}

}  // namespace
}  // namespace ebb
