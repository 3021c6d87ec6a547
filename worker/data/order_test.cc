// The training order as a permutation of every epoch, and its exact values.
#include "worker/data/order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace ebb {
namespace {

TEST(Order, VisitsEverySequenceOncePerEpoch) {
  for (int64_t n : {1, 2, 3, 5, 63, 64, 65, 625, 4097}) {
    const SequenceOrder order(1234, n, true);
    for (int64_t epoch : {0, 1, 7}) {
      std::vector<int> visits(n);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t sequence = order.At(epoch * n + i);
        ASSERT_GE(sequence, 0);
        ASSERT_LT(sequence, n);
        ++visits[sequence];
      }
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(visits[i], 1) << n << " " << i;
    }
  }
}

TEST(Order, WithoutShufflingIsThatOfTheFiles) {
  const SequenceOrder order(1234, 5, false);
  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(order.At(i), i % 5);
}

TEST(Order, DiffersBetweenEpochsAndSeeds) {
  const int64_t n = 1000;
  const SequenceOrder a(1, n, true);
  const SequenceOrder b(2, n, true);
  int same_epoch = 0, same_seed = 0, in_place = 0;
  for (int64_t i = 0; i < n; ++i) {
    same_epoch += a.At(i) == a.At(n + i);
    same_seed += a.At(i) == b.At(i);
    in_place += a.At(i) == i;
  }
  // One in a random pair of permutations, on average.
  EXPECT_LT(same_epoch, 10);
  EXPECT_LT(same_seed, 10);
  EXPECT_LT(in_place, 10);
}

// A resumed job makes a new object: nothing but the arguments may matter.
TEST(Order, IsAPureFunctionOfItsArguments) {
  const SequenceOrder order(9, 625, true);
  std::vector<int64_t> forward;
  for (int64_t i = 0; i < 2000; ++i) forward.push_back(order.At(i));
  for (int64_t i = 1999; i >= 0; --i) {
    EXPECT_EQ(SequenceOrder(9, 625, true).At(i), forward[i]);
  }
}

TEST(Order, StaysAsItIs) {
  // Stored checkpoints hold a position in this order. Expected values from a
  // separate program by the header's definition.
  const SequenceOrder order(1234, 10, true);
  std::vector<int64_t> first;
  for (int64_t i = 0; i < 20; ++i) first.push_back(order.At(i));
  EXPECT_EQ(first, (std::vector<int64_t>{3, 2, 9, 1, 6, 7, 5, 4, 8, 0,
                                         1, 6, 8, 0, 3, 5, 9, 7, 4, 2}));
}

TEST(Order, PutsEverySequenceEverywhereEquallyOften) {
  const int64_t n = 5;
  const int64_t epochs = 4000;
  const SequenceOrder order(77, n, true);
  std::vector<int64_t> counts(n * n);
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (int64_t i = 0; i < n; ++i) {
      ++counts[i * n + order.At(epoch * n + i)];
    }
  }
  const double expected = static_cast<double>(epochs) / n;
  double chi_squared = 0;
  for (int64_t count : counts) {
    chi_squared += (count - expected) * (count - expected) / expected;
  }
  // 16 degrees of freedom: above 39.3 once in a thousand.
  EXPECT_LT(chi_squared, 39.3);
}

TEST(Order, HoldsFarPositions) {
  const int64_t n = int64_t{1} << 40;
  const SequenceOrder order(3, n, true);
  const int64_t sequence = order.At(n * 1000 + 12345);
  EXPECT_GE(sequence, 0);
  EXPECT_LT(sequence, n);
}

}  // namespace
}  // namespace ebb
