// Finding, starting and stopping, with a real process that has a coordinator's
// manners.
#include "client/local_coordinator.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/connection.h"
#include "client/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ebb {
namespace {

using testing::HasSubstr;

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class LocalCoordinator : public testing::Test {
 protected:
  LocalCoordinator() {
    std::string name = testing::TempDir() + "coordinator.XXXXXX";
    root_ = mkdtemp(name.data());
    state_ = root_ + "/a/state";
    environment_ = SystemEnvironment();
    environment_.err = &err_;
    environment_.program_directory = EBB_FAKE_COORDINATOR_DIR;
    environment_.variables["EBB_STATE"] = state_;
  }
  ~LocalCoordinator() override {
    StopCoordinator(state_, absl::Seconds(20)).IgnoreError();
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    std::filesystem::remove_all(root_);
  }

  absl::StatusOr<CoordinatorFile> Ensure(const StartOptions& options = {}) {
    return EnsureCoordinator(environment_, state_, ProbeSocket, options);
  }

  std::string root_;
  std::string state_;
  std::ostringstream err_;
  Environment environment_;
};

TEST_F(LocalCoordinator, StateDirectoryFollowsTheVariables) {
  Environment environment;
  environment.working_directory = "/home";
  EXPECT_TRUE(absl::IsFailedPrecondition(StateDirectory(environment).status()));
  environment.variables["HOME"] = "/home/ada";
  EXPECT_EQ(StateDirectory(environment).value(), "/home/ada/.local/state/ebb");
  environment.variables["XDG_STATE_HOME"] = "relative";
  EXPECT_EQ(StateDirectory(environment).value(), "/home/ada/.local/state/ebb");
  environment.variables["XDG_STATE_HOME"] = "/var/ada";
  EXPECT_EQ(StateDirectory(environment).value(), "/var/ada/ebb");
  environment.variables["EBB_STATE"] = "here/";
  EXPECT_EQ(StateDirectory(environment).value(), "/home/here");
}

TEST_F(LocalCoordinator, LongPathsSayWhatToSet) {
  environment_.variables["EBB_STATE"] = "/" + std::string(120, 'x');
  const absl::Status status = StateDirectory(environment_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("set EBB_STATE"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("107"));
}

TEST_F(LocalCoordinator, StartsOneAndFindsItAgain) {
  const auto first = Ensure();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->version, kVersion);
  EXPECT_TRUE(IsCoordinatorAlive(*first));
  EXPECT_EQ(err_.str(), absl::StrCat("starting the coordinator (state in ",
                                     state_, ", `ebb stop` ends it)\n"));
  struct stat status {};
  ASSERT_EQ(stat(state_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);

  err_.str("");
  const auto second = Ensure();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->pid, first->pid);
  EXPECT_EQ(err_.str(), "");
}

TEST_F(LocalCoordinator, ItInheritsNothing) {
  const int open_file = open("/dev/null", O_RDONLY);
  ASSERT_TRUE(Ensure().ok());
  close(open_file);
  const std::string log = ReadText(state_ + "/log/ebbd.log");
  EXPECT_THAT(log, HasSubstr("descriptors 3\n"));
  EXPECT_THAT(log, HasSubstr("directory /\n"));
  EXPECT_THAT(log, HasSubstr("leader yes\n"));
}

TEST_F(LocalCoordinator, TwoClientsAtOnceEndWithOne) {
  absl::StatusOr<CoordinatorFile> found[4];
  std::ostringstream errs[4];
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      Environment environment = environment_;
      environment.err = &errs[i];
      found[i] = EnsureCoordinator(environment, state_, ProbeSocket);
    });
  }
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(found[i].ok()) << found[i].status();
    EXPECT_EQ(found[i]->pid, found[0]->pid);
  }
}

TEST_F(LocalCoordinator, OneThatDiedIsReplaced) {
  const auto first = Ensure();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(kill(static_cast<pid_t>(first->pid), SIGKILL), 0);
  waitpid(static_cast<pid_t>(first->pid), nullptr, 0);
  EXPECT_FALSE(IsCoordinatorAlive(*first));
  const auto second = Ensure();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(second->pid, first->pid);
}

TEST_F(LocalCoordinator, AFailedStartShowsTheLog) {
  environment_.variables["FAKE_EBBD_FAILS"] = "1";
  const absl::Status status = Ensure().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("exited"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("told to fail"));
}

TEST_F(LocalCoordinator, AMissingProgramIsNamed) {
  environment_.program_directory = root_;
  const absl::Status status = Ensure().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(root_ + "/ebbd"));
}

TEST_F(LocalCoordinator, OpenDirectoriesAreRefused) {
  std::filesystem::create_directories(state_);
  ASSERT_EQ(chmod(state_.c_str(), 0755), 0);
  const absl::Status status = PrepareStateDirectory(state_);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("chmod 700 ", state_)));
  ASSERT_EQ(chmod(state_.c_str(), 0700), 0);
  EXPECT_TRUE(PrepareStateDirectory(state_).ok());
}

TEST_F(LocalCoordinator, StopEndsItAndSaysWhenNoneRuns) {
  EXPECT_FALSE(StopCoordinator(state_, absl::Seconds(20)).value());
  const auto file = Ensure();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(StopCoordinator(state_, absl::Seconds(20)).value());
  waitpid(static_cast<pid_t>(file->pid), nullptr, 0);
  EXPECT_FALSE(StopCoordinator(state_, absl::Seconds(20)).value());
}

TEST_F(LocalCoordinator, StopSignalsNoStranger) {
  ASSERT_TRUE(PrepareStateDirectory(state_).ok());
  // A left-over file, and the number belongs to another program now: this one.
  std::ofstream(state_ + "/ebbd.json")
      << "{\"pid\": " << getpid()
      << ", \"version\": \"1\", \"socket\": \"/nonexistent\"}";
  EXPECT_FALSE(StopCoordinator(state_, absl::Seconds(20)).value());
}

TEST_F(LocalCoordinator, BrokenFilesAreNamed) {
  ASSERT_TRUE(PrepareStateDirectory(state_).ok());
  for (const char* text : {"", "{", "[]", "{\"pid\": \"1\"}"}) {
    std::ofstream(state_ + "/ebbd.json") << text;
    EXPECT_EQ(ReadCoordinatorFile(state_).status().code(),
              absl::StatusCode::kDataLoss)
        << text;
  }
}

}  // namespace
}  // namespace ebb
