// Numbers and times.
#include "client/format.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace ebb {
namespace {

TEST(Format, BytesHaveThreeDigits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.00 KiB");
  EXPECT_EQ(FormatBytes(1572864), "1.50 MiB");
  EXPECT_EQ(FormatBytes(int64_t{1} << 30), "1.00 GiB");
  EXPECT_EQ(FormatBytes((int64_t{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(FormatBytes(-2048), "-2.00 KiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8.00 EiB");
  EXPECT_EQ(FormatExactBytes(1572864), "1.50 MiB (1572864 B)");
  EXPECT_EQ(FormatExactBytes(64), "64 B");
}

TEST(Format, FlopsAndCountsUsePowersOfThousand) {
  EXPECT_EQ(FormatFlops(0), "0 FLOP");
  EXPECT_EQ(FormatFlops(12.34e9), "12.3 GFLOP");
  EXPECT_EQ(FormatFlops(999.9e9), "1.00 TFLOP");
  EXPECT_EQ(FormatCount(12), "12");
  EXPECT_EQ(FormatCount(45123), "45.1k");
  EXPECT_EQ(FormatPercent(0.241), "24.1 %");
  EXPECT_EQ(FormatLoss(1.84321), "1.8432");
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(FormatLoss(kNan), "nan");
  EXPECT_EQ(FormatLoss(std::copysign(kNan, -1)), "nan");
}

TEST(Format, DurationsChooseTheirUnit) {
  EXPECT_EQ(DurationText(absl::Milliseconds(420)), "0.42 s");
  EXPECT_EQ(DurationText(absl::Seconds(12.34)), "12.3 s");
  EXPECT_EQ(DurationText(absl::Seconds(59.97)), "1m 00s");
  EXPECT_EQ(DurationText(absl::Seconds(185)), "3m 05s");
  EXPECT_EQ(DurationText(absl::Minutes(127)), "2h 07m");
  EXPECT_EQ(DurationText(absl::Hours(99)), "4d 03h");
  EXPECT_EQ(DurationText(absl::Seconds(-5)), "0.00 s");
  EXPECT_EQ(DurationText(absl::InfiniteDuration()), "-");
}

TEST(Format, Seconds) {
  EXPECT_EQ(FormatSeconds(0), "0 s");
  EXPECT_EQ(FormatSeconds(2.5e-6), "2.50 us");
  EXPECT_EQ(FormatSeconds(310e-6), "310 us");
  EXPECT_EQ(FormatSeconds(0.9996e-3), "1.00 ms");
  EXPECT_EQ(FormatSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(FormatSeconds(0.9996), "1.00 s");
  EXPECT_EQ(FormatSeconds(185), "3m 05s");
}

TEST(Format, TimesNameTheirSecond) {
  EXPECT_EQ(TimeText(absl::FromUnixSeconds(1700000000), absl::UTCTimeZone()),
            "2023-11-14 22:13:20");
  EXPECT_EQ(TimeText(absl::InfinitePast(), absl::UTCTimeZone()), "-");
}

TEST(Format, WidthCountsCodePoints) {
  EXPECT_EQ(DisplayWidth("caf\xc3\xa9"), 4);
  EXPECT_EQ(DisplayWidth(""), 0);
}

}  // namespace
}  // namespace ebb
