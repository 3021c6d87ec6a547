// First and second Ctrl-C.
#include "client/interrupt.h"

#include <signal.h>

#include "absl/synchronization/notification.h"
#include "client/exit_code.h"
#include "gtest/gtest.h"

namespace ebb {
namespace {

TEST(Interrupt, FirstOneCallsBack) {
  absl::Notification called;
  InterruptScope scope([&] { called.Notify(); });
  EXPECT_FALSE(scope.interrupted());
  raise(SIGINT);
  called.WaitForNotification();
  EXPECT_TRUE(scope.interrupted());
}

TEST(Interrupt, SecondOneExitsAsDetached) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        InterruptScope scope([] {});
        raise(SIGINT);
        raise(SIGINT);
      },
      ::testing::ExitedWithCode(kExitDetached), "");
}

TEST(Interrupt, ScopesFollowEachOther) {
  for (int i = 0; i < 3; ++i) {
    InterruptScope scope([] {});
    EXPECT_FALSE(scope.interrupted());
  }
}

}  // namespace
}  // namespace ebb
