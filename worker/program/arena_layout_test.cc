// Placing ranges: no overlap in random cases, the bound met in the easy ones.
#include "worker/program/arena_layout.h"

#include <gtest/gtest.h>

#include "kernels/philox.h"

namespace ebb {
namespace {

bool Overlap(const PlacedRange& a, const PlacedRange& b) {
  return a.first_line <= b.last_line && b.first_line <= a.last_line &&
         a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

uint64_t Draw(uint64_t& state) { return state = philox::Mix(state); }

TEST(PlaceRanges, NeverOverlapsAndNeverBeatsTheBound) {
  uint64_t state = 1;
  double worst = 0;
  for (int round = 0; round < 100; ++round) {
    std::vector<PlacedRange> ranges;
    const int count = 1 + static_cast<int>(Draw(state) % 40);
    for (int i = 0; i < count; ++i) {
      const int first = static_cast<int>(Draw(state) % 50);
      const int length = static_cast<int>(Draw(state) % 12);
      const int64_t bytes = 64 * (1 + static_cast<int64_t>(Draw(state) % 64));
      ranges.push_back({0, bytes, first, first + length});
    }
    const std::vector<PlacedRange> obstacles = {{640, 128, 5, 20},
                                                {64, 64, 0, 60}};
    const int64_t end = PlaceRanges(ranges, obstacles, 64);
    for (size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_GE(ranges[i].offset, 64);
      EXPECT_EQ(ranges[i].offset % kAlignment, 0);
      EXPECT_LE(ranges[i].offset + ranges[i].bytes, end);
      for (size_t k = 0; k < i; ++k) {
        EXPECT_FALSE(Overlap(ranges[i], ranges[k])) << round;
      }
      for (const PlacedRange& obstacle : obstacles) {
        EXPECT_FALSE(Overlap(ranges[i], obstacle)) << round;
      }
    }
    const int64_t bound = LargestUse(ranges, obstacles, 64);
    EXPECT_GE(end, bound);
    worst = std::max(worst, static_cast<double>(end) / bound);
  }
  // Random cases are harder than programs; the obstacle leaves a hole.
  EXPECT_LT(worst, 1.6);
}

TEST(PlaceRanges, ReusesWhatIsFree) {
  std::vector<PlacedRange> ranges = {
      {0, 128, 0, 1}, {0, 128, 2, 3}, {0, 64, 1, 2}};
  EXPECT_EQ(PlaceRanges(ranges, {}, 0), 192);
}

TEST(PlaceRanges, IsTheSameEveryTime) {
  std::vector<PlacedRange> first = {
      {0, 128, 0, 4}, {0, 192, 2, 3}, {0, 64, 1, 2}, {0, 256, 3, 9}};
  std::vector<PlacedRange> second = first;
  PlaceRanges(first, {}, 0);
  PlaceRanges(second, {}, 0);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].offset, second[i].offset);
  }
}

}  // namespace
}  // namespace ebb
