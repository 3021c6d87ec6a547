// Known answers of Philox4x32-10, and properties of the draws made from it.
// Source of the vectors: Random123's known-answer file (Salmon et al. 2011).
#include "kernels/philox.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace ebb::philox {
namespace {

TEST(Philox, GivesKnownAnswers) {
  EXPECT_EQ(Generate({0, 0, 0, 0}, 0, 0),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Generate({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Generate({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                     0xa4093822, 0x299f31d0),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, DrawDependsOnEveryPartOfItsCounterAndKey) {
  const uint64_t key = Key(1234, 99);
  const Block draw = Draw(key, 7, 3, 5);
  EXPECT_NE(draw, Draw(key, 8, 3, 5));
  EXPECT_NE(draw, Draw(key, 7 + (uint64_t{1} << 32), 3, 5));
  EXPECT_NE(draw, Draw(key, 7, 4, 5));
  EXPECT_NE(draw, Draw(key, 7, 3, 6));
  EXPECT_NE(draw, Draw(Key(1235, 99), 7, 3, 5));
  EXPECT_NE(draw, Draw(Key(1234, 98), 7, 3, 5));
  EXPECT_EQ(draw, Draw(Key(1234, 99), 7, 3, 5));
}

TEST(Philox, ThresholdDropsTheAskedShare) {
  EXPECT_EQ(DropThreshold(0.0f), 0u);
  EXPECT_EQ(DropThreshold(0.5f), 0x80000000u);
  const uint32_t threshold = DropThreshold(0.3f);
  const uint64_t key = Key(1, 2);
  constexpr int kNumBlocks = 25000;
  int num_dropped = 0;
  for (uint64_t block = 0; block < kNumBlocks; ++block) {
    for (uint32_t word : Draw(key, block, 0, 1))
      num_dropped += word < threshold;
  }
  // 100000 draws: standard deviation sqrt(0.3 * 0.7 / 1e5) = 0.00145.
  EXPECT_NEAR(num_dropped / (4.0 * kNumBlocks), 0.3, 4 * 0.00145);
}

TEST(Philox, KeepScaleKeepsTheExpectation) {
  EXPECT_EQ(KeepScale(0.0f), 1.0f);
  EXPECT_EQ(KeepScale(0.5f), 2.0f);
}

}  // namespace
}  // namespace ebb::philox
