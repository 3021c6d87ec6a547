// The program's flags, and a supervisor with a real rank below it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/clock.h"

namespace ebb {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

struct Outcome {
  int exit_code = -1;
  std::string text;  // standard output and error
};

Outcome RunWorker(const std::string& arguments) {
  std::FILE* pipe = popen((EBB_WORKER " " + arguments + " 2>&1").c_str(), "r");
  Outcome outcome;
  char block[4096];
  while (size_t n = std::fread(block, 1, sizeof(block), pipe)) {
    outcome.text.append(block, n);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

bool Becomes(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

TEST(Main, DescribesThisMachine) {
  const Outcome outcome = RunWorker("--describe --threads 3");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  const json description = json::parse(outcome.text);
  EXPECT_EQ(description["backend"]["threads"], 3);
  EXPECT_EQ(description["backend"]["kind"], "cpu");
  EXPECT_GT(description["kernels"].size(), 10u);
  EXPECT_EQ(RunWorker("--describe --threads 3").text, outcome.text);
}

TEST(Main, SaysItsVersion) {
  const Outcome outcome = RunWorker("--version");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.text, HasSubstr(EBB_VERSION));
}

TEST(Main, WrongUsageIsExitCodeTwo) {
  for (const char* arguments :
       {"--no-such-flag", "--supervise", "--threads 2",
        "--describe --threads x", "--supervise --directory relative --ranks 1",
        "--supervise --directory /tmp --ranks 0",
        "--supervise --directory /tmp --describe", "--export /tmp",
        "--to /tmp/x", "--export /tmp --to /tmp/x --describe",
        "--export /tmp --to /tmp/x --step -1", ""}) {
    const Outcome outcome = RunWorker(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_NE(outcome.text, "") << arguments;
  }
}

TEST(Main, AnExportThatFailsSaysWhy) {
  const std::string directory = ::testing::TempDir() + "/ebb-no-checkpoints";
  std::filesystem::create_directory(directory);
  const Outcome none =
      RunWorker("--export " + directory + " --to " + directory + "/hf");
  EXPECT_EQ(none.exit_code, 64 + 9);  // FAILED_PRECONDITION
  EXPECT_THAT(none.text,
              HasSubstr("ebb-worker: no complete checkpoint below "));
  const Outcome relative = RunWorker("--export " + directory + " --to hf");
  EXPECT_EQ(relative.exit_code, 64 + 3);  // INVALID_ARGUMENT
}

TEST(Main, SupervisorWithoutItsDirectorySaysSo) {
  const Outcome outcome =
      RunWorker("--supervise --directory /nonexistent --ranks 1");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.text, HasSubstr("/nonexistent"));
}

TEST(Main, RankThatIsTerminatedBeforeItBeginsEndsWell) {
  std::string pattern = "/tmp/ebb_program.XXXXXX";
  const std::string directory = mkdtemp(pattern.data());
  const auto text = [&](const char* name) {
    std::ifstream file(directory + "/" + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const pid_t supervisor = fork();
  if (supervisor == 0) {
    setenv("EBB_STATE", directory.c_str(), 1);
    setenv("EBB_JOB", "k3j2h1g0", 1);
    setenv("EBB_ATTEMPT", "1", 1);
    setenv("EBB_SERVER", ("unix:" + directory + "/nobody").c_str(), 1);
    execl(EBB_WORKER, "ebb-worker", "--supervise", "--directory",
          directory.c_str(), "--ranks", "2", nullptr);
    _exit(99);
  }
  // Both ranks look for a coordinator.
  EXPECT_TRUE(Becomes([&] {
    return text("rank-0.log").find("no coordinator") != std::string::npos &&
           text("rank-1.log").find("no coordinator") != std::string::npos;
  }));
  kill(supervisor, SIGTERM);
  int status = 0;
  EXPECT_TRUE(
      Becomes([&] { return waitpid(supervisor, &status, WNOHANG) != 0; }));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  for (const char* name : {"rank-0.exit", "rank-1.exit"}) {
    const json exit = json::parse(text(name), nullptr, false);
    EXPECT_EQ(exit["exit_code"], 0) << name;
    EXPECT_EQ(exit["stopped"], true) << name;
  }
  EXPECT_THAT(text("rank-1.log"),
              HasSubstr(" job=k3j2h1g0 attempt=1 rank=1\n"));
  EXPECT_THAT(text("supervisor.log"), HasSubstr(" job=k3j2h1g0 attempt=1\n"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace ebb
