// Distribution, independence and exact values of first weights.
#include "worker/optimizer/initialize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace ebb {
namespace {

std::vector<float> Normal(uint64_t seed, uint64_t key, double deviation,
                          int64_t first, int64_t count) {
  std::vector<float> out(count, NAN);
  InitializeParameter(seed, key, Init::kNormal, deviation, first, out);
  return out;
}

TEST(Initialize, FillsConstants) {
  std::vector<float> out(5, NAN);
  InitializeParameter(1, 2, Init::kZeros, 0.5, 0, out);
  EXPECT_EQ(out, std::vector<float>(5, 0.0f));
  InitializeParameter(1, 2, Init::kOnes, 0.5, 0, out);
  EXPECT_EQ(out, std::vector<float>(5, 1.0f));
}

TEST(Initialize, HasTheMomentsOfANormalDistribution) {
  const int64_t n = 200000;
  const std::vector<float> x = Normal(1234, 99, 0.02, 0, n);
  double sum = 0, squares = 0, cubes = 0, fourths = 0;
  int64_t within = 0;
  for (float value : x) {
    const double z = value / 0.02;
    sum += z;
    squares += z * z;
    cubes += z * z * z;
    fourths += z * z * z * z;
    within += std::abs(z) < 1;
  }
  // Five standard errors each: 1, 2, 15 and 96 are the variances of the powers
  // of a normal.
  EXPECT_NEAR(sum / n, 0, 5 * std::sqrt(1.0 / n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(cubes / n, 0, 5 * std::sqrt(15.0 / n));
  EXPECT_NEAR(fourths / n, 3, 5 * std::sqrt(96.0 / n));
  EXPECT_NEAR(static_cast<double>(within) / n, 0.682689,
              5 * std::sqrt(0.217 / n));
}

TEST(Initialize, NeighboursAreNotCorrelated) {
  const int64_t n = 100000;
  const std::vector<float> x = Normal(1234, 99, 1, 0, n + 4);
  for (int64_t distance : {1, 2, 3, 4}) {
    double product = 0;
    for (int64_t i = 0; i < n; ++i) {
      product += static_cast<double>(x[i]) * x[i + distance];
    }
    EXPECT_NEAR(product / n, 0, 5 / std::sqrt(n)) << distance;
  }
}

TEST(Initialize, APartEqualsTheSamePartOfTheWhole) {
  const std::vector<float> whole = Normal(7, 8, 0.5, 0, 103);
  for (int64_t first : {0, 1, 3, 4, 50, 102}) {
    for (int64_t count : {0, 1, 2, 5, 53}) {
      if (first + count > 103) continue;
      const std::vector<float> part = Normal(7, 8, 0.5, first, count);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first))
          << first << " " << count;
    }
  }
}

TEST(Initialize, SeedAndKeyChangeEveryValue) {
  const std::vector<float> a = Normal(1, 2, 1, 0, 64);
  const std::vector<float> b = Normal(2, 2, 1, 0, 64);
  const std::vector<float> c = Normal(1, 3, 1, 0, 64);
  for (int i = 0; i < 64; ++i) {
    EXPECT_NE(a[i], b[i]);
    EXPECT_NE(a[i], c[i]);
  }
}

TEST(Initialize, StaysAsItIs) {
  // Runs of one seed start from the same weights in every version. Expected
  // values from a separate program by the header's definition.
  const std::vector<float> x = Normal(1234, 5678, 1, 0, 5);
  const std::vector<float> expected = {2.0604712971f, -0.5913254906f,
                                       1.0746882257f, 0.2709534139f,
                                       -1.8126388731f};
  ASSERT_EQ(x.size(), expected.size());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_FLOAT_EQ(x[i], expected[i]);
}

TEST(Initialize, ReachesElementsBeyond32Bits) {
  const int64_t far = int64_t{1} << 35;
  const std::vector<float> x = Normal(1, 2, 1, far, 4);
  EXPECT_NE(x, Normal(1, 2, 1, 0, 4));
  for (float value : x) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace ebb
