// Signals to the process reach the watch, and nobody else.
#include "worker/signal_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ebb {
namespace {

TEST(SignalWatch, SeesEverySignalUntilItEnds) {
  BlockStopSignals();
  absl::Mutex mutex;
  std::vector<int> seen;
  {
    SignalWatch watch([&](int signal) {
      absl::MutexLock lock(&mutex);
      seen.push_back(signal);
    });
    for (int signal : {SIGTERM, SIGINT, SIGTERM}) {
      size_t before;
      {
        absl::MutexLock lock(&mutex);
        before = seen.size();
      }
      kill(getpid(), signal);
      absl::MutexLock lock(&mutex);
      auto more = [&] { return seen.size() > before; };
      ASSERT_TRUE(
          mutex.AwaitWithTimeout(absl::Condition(&more), absl::Seconds(30)));
      EXPECT_EQ(seen.back(), signal);
    }
  }
  EXPECT_EQ(seen.size(), 3u);
}

}  // namespace
}  // namespace ebb
