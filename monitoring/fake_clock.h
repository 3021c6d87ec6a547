// A clock for tests: stands still until it is moved.
#pragma once

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "monitoring/clock.h"

namespace ebb {

// May be called from any thread. A mutex that is given to Await must live until
// no call of Advance that began before Await returned is running.
class FakeClock : public Clock {
 public:
  // Starts at 2026-01-01 00:00:00 UTC, Monotonic() at 0.
  FakeClock();

  absl::Time Now() const override;
  absl::Duration Monotonic() const override;
  bool Await(absl::Mutex* mutex, const absl::Condition& condition,
             absl::Duration deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Moves both times ahead and wakes whoever waits for a deadline now reached.
  // The caller holds no mutex that is in use by Await.
  void Advance(absl::Duration duration);

  // Moves the wall time alone, as a user who sets the clock.
  void JumpWallTime(absl::Duration duration);

  // Blocks until `count` threads or more are inside Await, without a true
  // condition when they entered: then Advance reaches them.
  void BlockUntilWaiting(int count);

 private:
  mutable absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
  absl::Duration monotonic_ ABSL_GUARDED_BY(mutex_);
  // Of the threads inside Await.
  std::vector<absl::Mutex*> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ebb
