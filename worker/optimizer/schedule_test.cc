// Learning rates at every corner of warmup and decay.
#include "worker/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ebb {
namespace {

OptimizerSpec Peak(double lr) {
  OptimizerSpec optimizer;
  optimizer.lr = lr;
  return optimizer;
}

TEST(Schedule, EveryCornerIsFiniteAndNotNegative) {
  for (LrDecay decay :
       {LrDecay::kConstant, LrDecay::kLinear, LrDecay::kCosine}) {
    for (int64_t steps : {1, 2, 10}) {
      for (int64_t warmup : {int64_t{0}, int64_t{1}, steps, steps + 1}) {
        for (double min_lr : {0.0, 1e-4, 1e-3}) {
          for (int64_t step = 1; step <= steps + 5; ++step) {
            const double lr =
                LearningRate(Peak(1e-3), {warmup, decay, min_lr}, steps, step);
            EXPECT_TRUE(std::isfinite(lr) && lr >= 0 && lr <= 1e-3)
                << "decay " << static_cast<int>(decay) << " steps " << steps
                << " warmup " << warmup << " min_lr " << min_lr << " step "
                << step << ": " << lr;
          }
        }
      }
    }
  }
}

TEST(Schedule, WithoutWarmupTheFirstUpdateUsesThePeak) {
  for (LrDecay decay :
       {LrDecay::kConstant, LrDecay::kLinear, LrDecay::kCosine}) {
    EXPECT_EQ(LearningRate(Peak(0.5), {0, decay, 0.1}, 10, 1), 0.5);
    EXPECT_EQ(LearningRate(Peak(0.5), {1, decay, 0.1}, 10, 1), 0.5);
    EXPECT_EQ(LearningRate(Peak(0.5), {0, decay, 0.1}, 1, 1), 0.5);
  }
}

TEST(Schedule, WarmupRisesEvenlyToThePeak) {
  const LrScheduleSpec schedule = {4, LrDecay::kCosine, 0};
  EXPECT_DOUBLE_EQ(LearningRate(Peak(1), schedule, 10, 1), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(Peak(1), schedule, 10, 2), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(Peak(1), schedule, 10, 3), 0.75);
  EXPECT_EQ(LearningRate(Peak(1), schedule, 10, 4), 1);
  EXPECT_LT(LearningRate(Peak(1), schedule, 10, 5), 1);
}

TEST(Schedule, WarmupOfAllStepsReachesThePeak) {
  for (LrDecay decay :
       {LrDecay::kConstant, LrDecay::kLinear, LrDecay::kCosine}) {
    EXPECT_EQ(LearningRate(Peak(0.5), {10, decay, 0.1}, 10, 10), 0.5);
  }
}

TEST(Schedule, DecayEndsAtTheLastStepAndStaysThere) {
  for (LrDecay decay : {LrDecay::kLinear, LrDecay::kCosine}) {
    for (int64_t step = 10; step <= 15; ++step) {
      EXPECT_EQ(LearningRate(Peak(0.5), {2, decay, 0.1}, 10, step), 0.1);
    }
  }
  EXPECT_EQ(LearningRate(Peak(0.5), {2, LrDecay::kConstant, 0.1}, 10, 15), 0.5);
}

TEST(Schedule, DecayFollowsItsFormula) {
  // Half way from step 2 to step 10.
  EXPECT_DOUBLE_EQ(LearningRate(Peak(1), {2, LrDecay::kLinear, 0.5}, 10, 6),
                   0.75);
  EXPECT_DOUBLE_EQ(LearningRate(Peak(1), {2, LrDecay::kCosine, 0.5}, 10, 6),
                   0.75);
  // A quarter: (1 + cos(pi / 4)) / 2 = 0.853553...
  EXPECT_DOUBLE_EQ(LearningRate(Peak(1), {2, LrDecay::kLinear, 0}, 10, 4),
                   0.75);
  EXPECT_NEAR(LearningRate(Peak(1), {2, LrDecay::kCosine, 0}, 10, 4),
              0.853553390593, 1e-12);
  EXPECT_EQ(LearningRate(Peak(1), {2, LrDecay::kConstant, 0}, 10, 9), 1);
}

TEST(Schedule, RateZeroStaysZero) {
  EXPECT_EQ(LearningRate(Peak(0), {3, LrDecay::kCosine, 0}, 10, 1), 0);
  EXPECT_EQ(LearningRate(Peak(0), {3, LrDecay::kCosine, 0}, 10, 7), 0);
}

}  // namespace
}  // namespace ebb
