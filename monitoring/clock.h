// Time as an object, so that tests can move it. Wall time is only for display
// and records; every judgement (deadline, timeout, backoff) uses Monotonic().
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ebb {

// May be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;

  // Wall time; may jump.
  virtual absl::Time Now() const = 0;

  // Time since some fixed moment of the past; never goes back.
  virtual absl::Duration Monotonic() const = 0;

  // Waits, giving up `mutex` meanwhile, until `condition` holds or Monotonic()
  // has reached `deadline`; returns whether the condition holds, which it may
  // at once. absl::InfiniteDuration(): no deadline.
  virtual bool Await(absl::Mutex* mutex, const absl::Condition& condition,
                     absl::Duration deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) = 0;

  // The machine's clock; lives for ever.
  static Clock& Real();
};

}  // namespace ebb
