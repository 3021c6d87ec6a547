// The machine's clock.
#include "monitoring/clock.h"

#include <ctime>

#include "absl/time/clock.h"

namespace ebb {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }

  absl::Duration Monotonic() const override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return absl::DurationFromTimespec(now);
  }

  // Abseil sleeps by the wall clock: setting it back while somebody waits
  // delays the waking, setting it ahead wakes early. The loop repairs the
  // second; the first is late by the jump at most, and rare.
  bool Await(absl::Mutex* mutex, const absl::Condition& condition,
             absl::Duration deadline) override {
    for (;;) {
      absl::Duration rest = deadline - Monotonic();
      if (mutex->AwaitWithTimeout(condition, rest)) return true;
      if (Monotonic() >= deadline) return false;
    }
  }
};

}  // namespace

Clock& Clock::Real() {
  static Clock* clock = new RealClock;
  return *clock;
}

}  // namespace ebb
