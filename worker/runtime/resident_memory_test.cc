// Tests of the resident memory reading.
#include "worker/runtime/resident_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace ebb {
namespace {

TEST(ResidentMemory, AddsAnonymousAndShared) {
  const auto bytes = ParseResidentBytes(
      "VmRSS:\t  9000 kB\nRssAnon:\t    1200 kB\nRssFile:\t 700 kB\n"
      "RssShmem:\t      34 kB\n");
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, (1200 + 34) * 1024);
}

TEST(ResidentMemory, NamesAMissingField) {
  const auto bytes = ParseResidentBytes("RssAnon:\t 12 kB\n");
  ASSERT_FALSE(bytes.ok());
  EXPECT_NE(bytes.status().message().find("RssShmem"), std::string::npos);
}

TEST(ResidentMemory, SeesPagesThatTheProcessTouches) {
  const auto before = ResidentBytes();
  ASSERT_TRUE(before.ok()) << before.status();
  constexpr int64_t kBytes = int64_t{64} << 20;
  std::vector<char> memory(kBytes);
  std::memset(memory.data(), 1, memory.size());
  const auto after = ResidentBytes();
  ASSERT_TRUE(after.ok()) << after.status();
  // The kernel's counters may lag by some pages per thread, and a sanitizer's
  // shadow takes an eighth more.
  const double growth = static_cast<double>(*after - *before);
  EXPECT_GE(growth, 0.98 * kBytes);
  EXPECT_LE(growth, 1.2 * kBytes);
  EXPECT_EQ(memory[kBytes / 2], 1);
}

}  // namespace
}  // namespace ebb
