// The rules for numbers, sizes and durations.
#include "proto/scalar_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace ebb {
namespace {

TEST(ScalarText, DoublesInEveryDecimalForm) {
  for (const char* text : {"1e-4", "1E-4", "1.e-4", ".0001", "+1e-4", "0.0001",
                           "0.1e-3", "10000e-8"}) {
    const Scalar<double> value = ParseDouble(text);
    EXPECT_TRUE(value.ok()) << text << ": " << value.rule;
    EXPECT_EQ(value.value, 0.0001) << text;
  }
  EXPECT_EQ(ParseDouble("-2.5").value, -2.5);
  EXPECT_EQ(ParseDouble("123456789.123").value, 123456789.123);
  EXPECT_EQ(ParseDouble("1.7976931348623157e308").value,
            std::numeric_limits<double>::max());
  EXPECT_EQ(ParseDouble("5e-324").value,
            std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(std::signbit(ParseDouble("-0").value), false);
  EXPECT_EQ(ParseDouble("0e999999999999").value, 0);
}

TEST(ScalarText, RefusesWhatIsNoNumber) {
  for (const char* text :
       {"",         ".",      "-",      "+",      "e5",
        "1e",       "1e+",    "1.2.3",  "--1",    "1 2",
        "abc",      "nan",    ".nan",   "inf",    "-.inf",
        "Infinity", "1,0e-4", "0x10",   "0x1p3",  "0o17",
        "0b1",      "1_000",  "1:30",   "010",    "00",
        "-01",      "1e400",  "-1e400", "1e-400", "1e99999999999999999999",
        "~",        "null",   "true",   "1f",     "1L",
        "\xd9\xa1"}) {
    EXPECT_FALSE(ParseDouble(text).ok()) << text;
    EXPECT_FALSE(ParseInt64(text).ok()) << text;
    EXPECT_FALSE(ParseUint64(text).ok()) << text;
  }
  EXPECT_NE(ParseDouble("nan").rule.find("finite"), std::string::npos);
  EXPECT_NE(ParseDouble("1e400").rule.find("too large"), std::string::npos);
  EXPECT_NE(ParseDouble("1e-400").rule.find("too small"), std::string::npos);
  EXPECT_NE(ParseInt64("010").rule.find("leading zeros"), std::string::npos);
}

TEST(ScalarText, WholeNumbersExactly) {
  EXPECT_EQ(ParseInt64("1e3").value, 1000);
  EXPECT_EQ(ParseInt64("1000.0").value, 1000);
  EXPECT_EQ(ParseInt64("1.5e1").value, 15);
  EXPECT_EQ(ParseInt64("+7").value, 7);
  EXPECT_EQ(ParseInt64("0").value, 0);
  EXPECT_EQ(ParseInt64("-0").value, 0);
  EXPECT_EQ(ParseInt64("9223372036854775807").value,
            std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ParseInt64("-9223372036854775808").value,
            std::numeric_limits<int64_t>::min());
  EXPECT_EQ(ParseUint64("18446744073709551615").value,
            std::numeric_limits<uint64_t>::max());
  // 2^53 + 1: a double in between would lose the one.
  EXPECT_EQ(ParseInt64("9007199254740993").value, 9007199254740993);
  for (const char* text :
       {"9223372036854775808", "-9223372036854775809", "2.7", "1e-1", "1e19",
        "1e999999999", "0.00000000000000000000000000000000000001"}) {
    EXPECT_FALSE(ParseInt64(text).ok()) << text;
  }
  EXPECT_FALSE(ParseUint64("18446744073709551616").ok());
  EXPECT_FALSE(ParseUint64("-1").ok());
  EXPECT_FALSE(ParseUint64("0.5").ok());
}

TEST(ScalarText, SizesInBytesAndBinaryUnits) {
  EXPECT_EQ(ParseByteSize("1536").value, 1536);
  EXPECT_EQ(ParseByteSize("1e9").value, 1000000000);
  EXPECT_EQ(ParseByteSize("1KiB").value, 1024);
  EXPECT_EQ(ParseByteSize("1.5 MiB").value, 3 << 19);
  EXPECT_EQ(ParseByteSize("2GiB").value, int64_t{1} << 31);
  EXPECT_EQ(ParseByteSize(".5TiB").value, int64_t{1} << 39);
  // 0.3 * 2^30 = 322122547.2.
  EXPECT_EQ(ParseByteSize("0.3GiB").value, 322122547);
  EXPECT_EQ(ParseByteSize("8388607.5TiB").value,
            int64_t{16777215} * (int64_t{1} << 39));
  for (const char* text :
       {"", "GiB", "2GB", "2G", "2gib", "2Gib", "1.5", "8388608TiB", "2GiB5",
        "2 G iB", "1e30", "0x10KiB"}) {
    EXPECT_FALSE(ParseByteSize(text).ok()) << text;
  }
  EXPECT_EQ(ParseByteSize("2GB").fix, "write 2GiB");
  EXPECT_EQ(ParseByteSize("1.5g").fix, "write 1.5GiB");
  EXPECT_EQ(ParseByteSize("64M").fix, "write 64MiB");
}

TEST(ScalarText, Durations) {
  EXPECT_EQ(ParseDuration("250ms").value.nanos(), 250000000);
  EXPECT_EQ(ParseDuration("5s").value.seconds(), 5);
  EXPECT_EQ(ParseDuration("5m").value.seconds(), 300);
  EXPECT_EQ(ParseDuration("1h").value.seconds(), 3600);
  EXPECT_EQ(ParseDuration("1.5h").value.seconds(), 5400);
  EXPECT_EQ(ParseDuration("0.5s").value.nanos(), 500000000);
  EXPECT_EQ(ParseDuration("-1s").value.seconds(), -1);
  for (const char* text : {"", "5", "s", "5 min", "5M", "5d", "1h30m",
                           "0.0000000001s", "1e30h", "abc", "05m"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
  EXPECT_EQ(ParseDuration("300").fix, "write 300s");
}

}  // namespace
}  // namespace ebb
