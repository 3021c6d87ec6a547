// What is measured of copies: plausible times, and what stands in the way.
#include "worker/runtime/copy_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/kernel_table.h"
#include "worker/program/cost_profile.h"
#include "worker/runtime/testing/heap_device.h"

namespace ebb {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;

absl::Status Compute() {
  volatile double sum = 0;
  for (int n = 0; n < 1000000; ++n) sum = sum + n;
  return absl::OkStatus();
}

TEST(CopyTimes, AreThoseOfBothPlaces) {
  HeapDevice device(CpuKernelTable(), int64_t{1} << 40);
  const auto seconds =
      MeasureCopies(device, testing::TempDir(), DiskPlace("/values"), Compute);
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_EQ(seconds->size(), 4u);
  for (const auto& [key, value] : *seconds) {
    EXPECT_GT(value, 0) << key;
    EXPECT_LT(value, 10) << key;
  }
  CostProfile profile;
  profile.TakeMeasured(*seconds, "/values");
  for (const CopyRate& rate : {profile.host, profile.disk}) {
    EXPECT_GT(rate.bytes_per_second, 1e5);
    EXPECT_GT(rate.share, 0);
    EXPECT_LE(rate.share, 1);
  }
  // Another directory may be another disk.
  CostProfile other;
  other.TakeMeasured(*seconds, "/elsewhere");
  EXPECT_EQ(other.host, profile.host);
  EXPECT_EQ(other.disk, CopyRate());
}

TEST(CopyTimes, OfADirectoryThatTakesNoFilesAreLeftOut) {
  HeapDevice device(CpuKernelTable(), int64_t{1} << 40);
  const auto seconds = MeasureCopies(device, "/proc", "disk", Compute);
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_THAT(*seconds, Contains(Key(CopyKey(kHostPlace))));
  EXPECT_THAT(*seconds, Not(Contains(Key(CopyKey("disk")))));
}

TEST(CopyTimes, EndWithTheOps) {
  HeapDevice device(CpuKernelTable(), int64_t{1} << 40);
  const auto seconds = MeasureCopies(device, testing::TempDir(), "disk", [] {
    return absl::CancelledError("given up");
  });
  EXPECT_EQ(seconds.status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace ebb
