// The real clock runs and the fake one moves only when told.
#include "monitoring/clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "monitoring/fake_clock.h"

namespace ebb {
namespace {

bool IsTrue(bool* flag) { return *flag; }

TEST(Clock, RealDeadlineEndsAWait) {
  Clock& clock = Clock::Real();
  absl::Mutex mutex;
  bool flag = false;
  absl::Duration start = clock.Monotonic();
  absl::MutexLock lock(&mutex);
  EXPECT_FALSE(clock.Await(&mutex, absl::Condition(IsTrue, &flag),
                           start + absl::Milliseconds(2)));
  EXPECT_GE(clock.Monotonic() - start, absl::Milliseconds(2));
}

TEST(Clock, RealConditionEndsAWait) {
  absl::Mutex mutex;
  bool flag = false;
  std::thread setter([&] {
    absl::MutexLock lock(&mutex);
    flag = true;
  });
  {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(Clock::Real().Await(&mutex, absl::Condition(IsTrue, &flag),
                                    absl::InfiniteDuration()));
  }
  setter.join();
}

TEST(Clock, FakeStandsStillUntilAdvanced) {
  FakeClock clock;
  absl::Time start = clock.Now();
  EXPECT_EQ(clock.Monotonic(), absl::ZeroDuration());
  EXPECT_EQ(absl::FormatTime(start, absl::UTCTimeZone()),
            "2026-01-01T00:00:00+00:00");
  clock.Advance(absl::Seconds(5));
  EXPECT_EQ(clock.Now() - start, absl::Seconds(5));
  EXPECT_EQ(clock.Monotonic(), absl::Seconds(5));
}

TEST(Clock, FakeWallTimeJumpsAlone) {
  FakeClock clock;
  absl::Time start = clock.Now();
  clock.JumpWallTime(-absl::Hours(1));
  EXPECT_EQ(clock.Now(), start - absl::Hours(1));
  EXPECT_EQ(clock.Monotonic(), absl::ZeroDuration());
}

TEST(Clock, FakeAdvanceWakesOnlyReachedDeadlines) {
  FakeClock clock;
  absl::Mutex early_mutex, late_mutex;
  bool never = false, early_done = false;
  auto wait = [&](absl::Mutex* mutex, absl::Duration deadline) {
    absl::MutexLock lock(mutex);
    EXPECT_FALSE(clock.Await(mutex, absl::Condition(IsTrue, &never), deadline));
    return clock.Monotonic();
  };
  std::thread early([&] {
    EXPECT_EQ(wait(&early_mutex, absl::Seconds(1)), absl::Seconds(1));
    early_done = true;
  });
  std::thread late([&] {
    EXPECT_EQ(wait(&late_mutex, absl::Seconds(2)), absl::Seconds(2));
  });
  clock.BlockUntilWaiting(2);
  clock.Advance(absl::Seconds(1));
  early.join();
  EXPECT_TRUE(early_done);
  clock.Advance(absl::Seconds(1));
  late.join();
}

TEST(Clock, FakeConditionEndsAWait) {
  FakeClock clock;
  absl::Mutex mutex;
  bool flag = false;
  std::thread waiter([&] {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(clock.Await(&mutex, absl::Condition(IsTrue, &flag),
                            absl::InfiniteDuration()));
  });
  clock.BlockUntilWaiting(1);
  {
    absl::MutexLock lock(&mutex);
    flag = true;
  }
  waiter.join();
}

}  // namespace
}  // namespace ebb
