// The numbers that scripts act on.
#include "client/exit_code.h"

#include "gtest/gtest.h"

namespace ebb {
namespace {

TEST(ExitCode, EveryStatusHasItsNumber) {
  using Code = absl::StatusCode;
  const std::pair<Code, int> expected[] = {
      {Code::kOk, 0},
      {Code::kInternal, 1},
      {Code::kDataLoss, 1},
      {Code::kCancelled, 1},
      {Code::kUnknown, 1},
      {Code::kInvalidArgument, 2},
      {Code::kUnimplemented, 2},
      {Code::kOutOfRange, 2},
      {Code::kNotFound, 3},
      {Code::kUnauthenticated, 4},
      {Code::kPermissionDenied, 4},
      {Code::kFailedPrecondition, 5},
      {Code::kAlreadyExists, 5},
      {Code::kAborted, 5},
      {Code::kUnavailable, 6},
      {Code::kDeadlineExceeded, 7},
      {Code::kResourceExhausted, 9},
  };
  for (const auto& [code, exit_code] : expected) {
    EXPECT_EQ(ExitCodeOf(code), exit_code) << StatusCodeName(code);
  }
  EXPECT_EQ(kExitDetached, 8);
  EXPECT_EQ(kExitJobFailed, 100);
  EXPECT_EQ(kExitJobCancelled, 103);
}

TEST(ExitCode, HelpNamesEveryNumber) {
  const std::string help = ExitCodeHelp();
  for (const char* line :
       {"\n    0  ", "\n    1  ", "\n    2  ", "\n    3  ", "\n    4  ",
        "\n    5  ", "\n    6  ", "\n    7  ", "\n    8  ", "\n    9  ",
        "\n  100  ", "\n  103  "}) {
    EXPECT_NE(help.find(line), std::string::npos) << line;
  }
}

TEST(ExitCode, NamesAreUpperCase) {
  EXPECT_EQ(StatusCodeName(absl::StatusCode::kInvalidArgument),
            "INVALID_ARGUMENT");
}

}  // namespace
}  // namespace ebb
