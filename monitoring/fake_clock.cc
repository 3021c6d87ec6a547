// Waiting is Abseil's, with the deadline as part of the condition; Advance
// makes Abseil evaluate it again by locking and unlocking the waiters' mutexes.
// Order of locks: a waiter's mutex, then mutex_.
#include "monitoring/fake_clock.h"

#include <algorithm>

#include "absl/time/civil_time.h"

namespace ebb {

FakeClock::FakeClock()
    : now_(absl::FromCivil(absl::CivilSecond(2026, 1, 1), absl::UTCTimeZone())),
      monotonic_(absl::ZeroDuration()) {}

absl::Time FakeClock::Now() const {
  absl::MutexLock lock(&mutex_);
  return now_;
}

absl::Duration FakeClock::Monotonic() const {
  absl::MutexLock lock(&mutex_);
  return monotonic_;
}

bool FakeClock::Await(absl::Mutex* mutex, const absl::Condition& condition,
                      absl::Duration deadline) {
  if (condition.Eval()) return true;
  {
    absl::MutexLock lock(&mutex_);
    waiting_.push_back(mutex);
  }
  auto done = [&] { return condition.Eval() || Monotonic() >= deadline; };
  mutex->Await(absl::Condition(&done));
  {
    absl::MutexLock lock(&mutex_);
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), mutex));
  }
  return condition.Eval();
}

void FakeClock::Advance(absl::Duration duration) {
  std::vector<absl::Mutex*> waiting;
  {
    absl::MutexLock lock(&mutex_);
    now_ += duration;
    monotonic_ += duration;
    waiting = waiting_;
  }
  for (absl::Mutex* mutex : waiting) {
    absl::MutexLock lock(mutex);
  }
}

void FakeClock::JumpWallTime(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  now_ += duration;
}

void FakeClock::BlockUntilWaiting(int count) {
  absl::MutexLock lock(&mutex_);
  auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return static_cast<int>(waiting_.size()) >= count;
  };
  mutex_.Await(absl::Condition(&enough));
}

}  // namespace ebb
