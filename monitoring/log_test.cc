// Log format, levels, and that lines of several threads never mix.
#include "monitoring/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

absl::Time Moment() {
  return absl::FromUnixMillis(1767323045678);  // 2026-01-02 03:04:05.678
}

TEST(Log, RecordIsOneLogfmtLine) {
  EXPECT_EQ(FormatLogRecord(Moment(), LogLevel::kWarning, "slow", "a/b.cc", 7,
                            {"k3j2h1g0", 2, 0}),
            "time=2026-01-02T03:04:05.678Z level=warning message=\"slow\" "
            "source=a/b.cc:7 job=k3j2h1g0 attempt=2 rank=0\n");
}

TEST(Log, UnsetFieldsAreLeftOut) {
  EXPECT_EQ(FormatLogRecord(Moment(), LogLevel::kInfo, "x", "b.cc", 1, {}),
            "time=2026-01-02T03:04:05.678Z level=info message=\"x\" "
            "source=b.cc:1\n");
}

TEST(Log, MessageIsEscapedOntoOneLine) {
  std::string line = FormatLogRecord(
      Moment(), LogLevel::kError,
      absl::string_view("a\"b\\c\nd\te\r\x01\x1b[0m\xc3\xa9", 17), "b.cc", 1,
      {});
  EXPECT_THAT(line,
              HasSubstr("message=\"a\\\"b\\\\c\\nd\\te\\r\\u0001\\u001b[0m"
                        "\xc3\xa9\""));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
}

TEST(Log, PathsAreRelativeToTheTree) {
  for (absl::string_view file : {"../../worker/main.cc", "worker/main.cc",
                                 EBB_SOURCE_DIR "/worker/main.cc"}) {
    if (absl::StartsWith(file, "/") && !absl::StartsWith(__FILE__, "/")) {
      continue;  // this build has no absolute names
    }
    EXPECT_THAT(FormatLogRecord(Moment(), LogLevel::kInfo, "x", file, 1, {}),
                HasSubstr(" source=worker/main.cc:1\n"))
        << file;
  }
  testing::internal::CaptureStderr();
  EBB_LOG(ERROR) << "value " << 42;
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              MatchesRegex("time=[0-9-]+T[0-9:]+\\.[0-9][0-9][0-9]Z "
                           "level=error message=\"value 42\" "
                           "source=monitoring/log_test\\.cc:[0-9]+\n"));
}

TEST(Log, RecordsBelowTheLevelAreNotEvaluated) {
  int evaluated = 0;
  testing::internal::CaptureStderr();
  SetLogLevel(LogLevel::kWarning);
  EBB_LOG(INFO) << ++evaluated;
  EBB_LOG(WARNING) << ++evaluated;
  SetLogLevel(LogLevel::kInfo);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("level=warning message=\"1\""));
  EXPECT_EQ(evaluated, 1);
}

TEST(Log, LevelsHaveNames) {
  EXPECT_EQ(ParseLogLevel("error"), LogLevel::kError);
  EXPECT_EQ(ParseLogLevel("ERROR"), std::nullopt);
  EXPECT_EQ(ParseLogLevel(""), std::nullopt);
}

TEST(Log, ProcessFieldsAreOnEveryLine) {
  SetLogFields({"k3j2h1g0", 3, 5});
  testing::internal::CaptureStderr();
  EBB_LOG(INFO) << "x";
  std::string line = testing::internal::GetCapturedStderr();
  SetLogFields({});
  EXPECT_THAT(line, HasSubstr(" job=k3j2h1g0 attempt=3 rank=5\n"));
}

TEST(Log, LinesOfThreadsDoNotMix) {
  constexpr int kThreads = 4, kLines = 200;
  testing::internal::CaptureStderr();
  {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < kLines; ++i) {
          EBB_LOG(INFO) << "thread " << t << " " << std::string(100, 'a' + t);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::vector<std::string> lines = absl::StrSplit(
      testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), kThreads * kLines);
  std::vector<int> counts(kThreads);
  for (const std::string& line : lines) {
    for (int t = 0; t < kThreads; ++t) {
      counts[t] += absl::StrContains(
          line, absl::StrCat("message=\"thread ", t, " ",
                             std::string(100, 'a' + t), "\" source="));
    }
  }
  EXPECT_THAT(counts, testing::Each(kLines));
}

}  // namespace
}  // namespace ebb
