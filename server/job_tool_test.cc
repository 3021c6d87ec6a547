// Real processes: a script plays ebb-worker.
#include "server/job_tool.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

class JobToolsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/toolXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // A worker that runs these lines of shell.
  std::string Script(const std::string& lines) {
    const std::string path = directory_ + "/ebb-worker";
    std::ofstream(path) << "#!/bin/sh\n" << lines << "\n";
    chmod(path.c_str(), 0700);
    return path;
  }

  // Runs the script once; what it printed is in output_.
  absl::Status Run(const std::string& lines,
                   std::vector<std::string> arguments = {},
                   std::string input = "") {
    JobTools tools(Script(lines), 1);
    call_.arguments = std::move(arguments);
    call_.input = std::move(input);
    return tools.Run(call_);
  }

  std::string directory_;
  std::string output_;
  bool cancelled_ = false;
  ToolCall call_ = {.arguments = {},
                    .input = "",
                    .on_output =
                        [this](absl::string_view piece) {
                          absl::StrAppend(&output_, piece);
                          return true;
                        },
                    .is_cancelled = [this] { return cancelled_; }};
};

TEST_F(JobToolsTest, GivesArgumentsAndInputAndTakesTheOutput) {
  const std::string input(300000, 'x');
  EXPECT_EQ(Run("echo \"$1 $2\"; wc -c", {"--sample", "a b"}, input),
            absl::OkStatus());
  EXPECT_EQ(output_, "--sample a b\n300000\n");
}

TEST_F(JobToolsTest, AnExitCodeAbove64IsTheToolsError) {
  const absl::Status status = Run(
      "echo 'a line of its log' >&2; echo 'ebb-worker: no room: for it' >&2; "
      "exit 72");
  EXPECT_EQ(status, absl::ResourceExhaustedError("no room: for it"));
}

TEST_F(JobToolsTest, AnyOtherEndIsInternal) {
  absl::Status status = Run("echo 'what it said' >&2; exit 3");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("exit code 3: what it said"));
  status = Run("exit 72");  // a code without a message
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  status = Run("kill -9 $$");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("signal 9"));
}

TEST_F(JobToolsTest, AWorkerThatIsNotThereIsAWrongState) {
  JobTools tools(directory_ + "/none", 1);
  EXPECT_EQ(tools.Run(call_).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(JobToolsTest, ACallThatIsGivenUpEndsTheTool) {
  call_.on_output = [this](absl::string_view piece) {
    absl::StrAppend(&output_, piece);
    cancelled_ = true;
    return true;
  };
  const absl::Status status = Run("echo $$; exec sleep 1000");
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  int pid = 0;
  ASSERT_TRUE(absl::SimpleAtoi(output_, &pid));
  EXPECT_NE(kill(pid, 0), 0);
}

TEST_F(JobToolsTest, AListenerThatIsGoneEndsTheTool) {
  call_.on_output = [](absl::string_view) { return false; };
  EXPECT_EQ(Run("echo 1; exec sleep 1000").code(),
            absl::StatusCode::kCancelled);
}

TEST_F(JobToolsTest, SoManyRunAtOnceAndNoMore) {
  JobTools tools(Script("echo 1"), 1);
  absl::Status inner;
  const auto append = call_.on_output;
  call_.on_output = [&](absl::string_view piece) {
    ToolCall second = call_;
    second.on_output = append;
    inner = tools.Run(second);
    return append(piece);
  };
  EXPECT_EQ(tools.Run(call_), absl::OkStatus());
  EXPECT_EQ(inner.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(output_, "1\n");
  // The place is free again.
  call_.on_output = append;
  EXPECT_EQ(tools.Run(call_), absl::OkStatus());
}

}  // namespace
}  // namespace ebb
