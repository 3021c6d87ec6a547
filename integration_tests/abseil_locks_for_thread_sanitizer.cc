// Tells the thread sanitizer what Abseil's locks order. Debian's Abseil is not
// instrumented and waits with futexes of its own, so that without this every
// value that an absl::Mutex guards would look unguarded.
//
// Linked into every program and test of a thread sanitizer build, where these
// definitions take the place of the library's, also for gRPC's calls, and go on
// to the library's. Covered is what Ebb and gRPC call: not reader locks.
// Conditions that Abseil evaluates inside a call, for threads that wait, are
// not checked; the first look of Await is.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#define EBB_QUOTE(x) #x
#define EBB_QUOTE_VALUE(x) EBB_QUOTE(x)

namespace {

// The library's function: its mangled name less the namespaces.
template <typename Function>
Function* InLibrary(const char* name) {
  const std::string space = EBB_QUOTE_VALUE(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string symbol =
      "_ZN4absl" + std::to_string(space.size()) + space + name;
  void* function = dlsym(RTLD_NEXT, symbol.c_str());
  if (function == nullptr) {
    std::fprintf(stderr, "no %s in Abseil's library\n", symbol.c_str());
    std::abort();
  }
  return reinterpret_cast<Function*>(function);
}

// Around a wait that gives a held mutex up and takes it again.
class GivenUp {
 public:
  explicit GivenUp(absl::Mutex* mutex) : mutex_(mutex) {
    __tsan_mutex_pre_unlock(mutex_, 0);
    __tsan_mutex_post_unlock(mutex_, 0);
    __tsan_mutex_pre_lock(mutex_, 0);
  }
  ~GivenUp() { __tsan_mutex_post_lock(mutex_, 0, 0); }
  GivenUp(const GivenUp&) = delete;
  GivenUp& operator=(const GivenUp&) = delete;

 private:
  absl::Mutex* const mutex_;
};

}  // namespace

void absl::Mutex::Lock() {
  static const auto lock = InLibrary<void(Mutex*)>("5Mutex4LockEv");
  __tsan_mutex_pre_lock(this, 0);
  lock(this);
  __tsan_mutex_post_lock(this, 0, 0);
}

bool absl::Mutex::TryLock() {
  static const auto try_lock = InLibrary<bool(Mutex*)>("5Mutex7TryLockEv");
  __tsan_mutex_pre_lock(this, __tsan_mutex_try_lock);
  const bool locked = try_lock(this);
  __tsan_mutex_post_lock(
      this, __tsan_mutex_try_lock | (locked ? 0 : __tsan_mutex_try_lock_failed),
      0);
  return locked;
}

void absl::Mutex::Unlock() {
  static const auto unlock = InLibrary<void(Mutex*)>("5Mutex6UnlockEv");
  __tsan_mutex_pre_unlock(this, 0);
  unlock(this);
  __tsan_mutex_post_unlock(this, 0);
}

void absl::Mutex::LockWhen(const Condition& condition) {
  static const auto lock = InLibrary<void(Mutex*, const Condition&)>(
      "5Mutex8LockWhenERKNS0_9ConditionE");
  __tsan_mutex_pre_lock(this, 0);
  lock(this, condition);
  __tsan_mutex_post_lock(this, 0, 0);
}

// LockWhenWithTimeout comes here too.
bool absl::Mutex::LockWhenWithDeadline(const Condition& condition,
                                       absl::Time deadline) {
  static const auto lock =
      InLibrary<bool(Mutex*, const Condition&, absl::Time)>(
          "5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_mutex_pre_lock(this, 0);
  const bool fulfilled = lock(this, condition, deadline);
  __tsan_mutex_post_lock(this, 0, 0);
  return fulfilled;
}

void absl::Mutex::Await(const Condition& condition) {
  static const auto await = InLibrary<void(Mutex*, const Condition&)>(
      "5Mutex5AwaitERKNS0_9ConditionE");
  if (condition.Eval()) return;
  GivenUp given_up(this);
  await(this, condition);
}

// AwaitWithTimeout comes here too.
bool absl::Mutex::AwaitWithDeadline(const Condition& condition,
                                    absl::Time deadline) {
  static const auto await =
      InLibrary<bool(Mutex*, const Condition&, absl::Time)>(
          "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  if (condition.Eval()) return true;
  GivenUp given_up(this);
  return await(this, condition, deadline);
}

void absl::CondVar::Wait(Mutex* mutex) {
  static const auto wait =
      InLibrary<void(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  GivenUp given_up(mutex);
  wait(this, mutex);
}

// WaitWithTimeout comes here too.
bool absl::CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
  static const auto wait = InLibrary<bool(CondVar*, Mutex*, absl::Time)>(
      "7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  GivenUp given_up(mutex);
  return wait(this, mutex, deadline);
}

// The library's own looks at the flag before it locks, unseen.
void absl::Notification::WaitForNotification() const {
  mutex_.LockWhen(Condition(&HasBeenNotifiedInternal, &notified_yet_));
  mutex_.Unlock();
}
