// The display as text.
#include "client/progress.h"

#include "client/format.h"
#include "gtest/gtest.h"

namespace ebb {
namespace {

Progress Running() {
  Progress progress;
  progress.state = "running";
  progress.planned_steps = 300;
  progress.budget_bytes = int64_t{2} << 30;
  AddStep({.step = 120,
           .loss = 1.84321,
           .tokens = 2048,
           .duration_seconds = 0.5,
           .peak_bytes = int64_t{1} << 30,
           .model_flops = 3e9,
           .recompute_flops = 1e9},
          &progress);
  return progress;
}

TEST(Progress, WideLineHasEverything) {
  EXPECT_EQ(RenderBar(Running(), 150),
            "running [===============>                      ]  "
            "step 120/300  loss 1.8432  memory 1.00 GiB of 2.00 GiB  "
            "recompute 25.0 %  ETA 1m 30s  4.10k tokens/s");
}

TEST(Progress, NarrowLinesDropFieldsFromTheRight) {
  EXPECT_EQ(RenderBar(Running(), 80),
            "running [=====>        ]  step 120/300  loss 1.8432  "
            "memory 1.00 GiB of 2.00 GiB");
  EXPECT_EQ(RenderBar(Running(), 50),
            "running [=====>       ]  step 120/300  loss 1.8432");
  EXPECT_EQ(RenderBar(Running(), 30), "running step 120/300");
  EXPECT_EQ(RenderBar(Running(), 7), "running");
}

TEST(Progress, NeverWiderThanTheTerminal) {
  for (int columns = 0; columns < 200; ++columns) {
    EXPECT_LE(DisplayWidth(RenderBar(Running(), columns)), columns);
  }
}

TEST(Progress, PlainLine) {
  EXPECT_EQ(RenderLine(Running()),
            "running  step 120/300  loss 1.8432  memory 1.00 GiB of 2.00 GiB  "
            "recompute 25.0 %  ETA 1m 30s  4.10k tokens/s");
}

TEST(Progress, BeforeTheFirstStepNothingIsInvented) {
  Progress progress;
  progress.state = "queued";
  progress.planned_steps = 10;
  EXPECT_EQ(RenderLine(progress), "queued  step 0/10");
  EXPECT_EQ(RemainingTime(progress), absl::InfiniteDuration());
}

TEST(Progress, RatesAreMovingAverages) {
  Progress progress = Running();
  AddStep({.step = 121, .tokens = 2048, .duration_seconds = 1.0}, &progress);
  EXPECT_NEAR(progress.seconds_per_step, 0.6, 1e-12);
  EXPECT_NEAR(progress.tokens_per_second, 4096 - 0.2 * 2048, 1e-9);
  EXPECT_EQ(progress.recompute_share, 0);
}

TEST(Progress, NothingRemainsOfAJobThatEnded) {
  Progress progress = Running();
  progress.ended = true;
  EXPECT_EQ(RenderLine(progress),
            "running  step 120/300  loss 1.8432  memory 1.00 GiB of 2.00 GiB  "
            "recompute 25.0 %  4.10k tokens/s");
  EXPECT_EQ(RemainingTime(progress), absl::ZeroDuration());
}

TEST(Progress, LastStepIsFull) {
  Progress progress = Running();
  AddStep({.step = 300, .tokens = 2048, .duration_seconds = 0.5}, &progress);
  const std::string line = RenderBar(progress, 120);
  EXPECT_EQ(line.find('>'), std::string::npos);
  EXPECT_EQ(line.find("ETA"), std::string::npos);
}

}  // namespace
}  // namespace ebb
