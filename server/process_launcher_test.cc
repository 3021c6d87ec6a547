// Real processes: a script plays the supervisor.
#include "server/process_launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inventory.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

// Polls real processes.
bool WaitUntil(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    const timespec nap = {0, 5000000};
    nanosleep(&nap, nullptr);
  }
  return false;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class ProcessLauncherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/launchXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    key_ = {"aaaaaaaa", 1, directory_ + "/attempt-1", 1};
    std::filesystem::create_directory(key_.directory);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // A supervisor that runs these lines of shell, $D its directory.
  ProcessLauncher Script(const std::string& lines) {
    const std::string path = directory_ + "/ebb-worker";
    std::ofstream(path) << "#!/bin/sh\nD=\"$3\"\n" << lines << "\n";
    chmod(path.c_str(), 0700);
    return ProcessLauncher({path, directory_, "unix:/s"});
  }
  // Writes supervisor.json as the script's own process.
  static std::string Alive() {
    return "T=$(sed 's/.*) //' /proc/$$/stat | cut -d' ' -f20)\n"
           "echo \"{\\\"pid\\\": $$, \\\"start_ticks\\\": $T, \\\"ranks\\\": "
           "[]}\" > $D/supervisor.json.tmp\n"
           "mv $D/supervisor.json.tmp $D/supervisor.json\n";
  }
  void WaitFor(ProcessLauncher& launcher, SupervisorState state) {
    EXPECT_TRUE(
        WaitUntil([&] { return launcher.Observe(key_).supervisor == state; }));
  }

  std::string directory_;
  AttemptKey key_;
};

TEST_F(ProcessLauncherTest, SeesTheWholeLifeOfAnAttempt) {
  ProcessLauncher launcher = Script(
      Alive() +
      "env | grep -E '^EBB_(STATE|JOB|ATTEMPT|RANK|SERVER)=' | sort "
      "> $D/environment; echo \"$@\" > $D/arguments\n"
      "while [ ! -e $D/go ]; do sleep 0.01; done\n"
      "echo '{\"rank\": 0, \"exit_code\": -1, \"signal\": 9, \"stopped\": "
      "false}' > $D/rank-0.exit\n"
      "echo \"{\\\"pid\\\": $$, \\\"failed_rank\\\": 0, \\\"error\\\": "
      "\\\"\\\"}\" > $D/supervisor.exit; exit 1");
  setenv("EBB_RANK", "9", 1);
  ASSERT_TRUE(launcher.Launch(key_).ok());
  unsetenv("EBB_RANK");
  WaitFor(launcher, SupervisorState::kAlive);
  std::ofstream(key_.directory + "/go") << "1";
  WaitFor(launcher, SupervisorState::kEnded);
  const AttemptObservation observed = launcher.Observe(key_);
  EXPECT_EQ(observed.failed_rank, 0);
  ASSERT_TRUE(observed.exits[0].has_value());
  EXPECT_EQ(observed.exits[0]->signal, 9);
  EXPECT_FALSE(observed.exits[0]->stopped);
  EXPECT_EQ(ReadAll(key_.directory + "/environment"),
            absl::StrCat("EBB_ATTEMPT=1\nEBB_JOB=aaaaaaaa\n"
                         "EBB_SERVER=unix:/s\nEBB_STATE=",
                         directory_, "\n"));
  EXPECT_EQ(
      ReadAll(key_.directory + "/arguments"),
      absl::StrCat("--supervise --directory ", key_.directory, " --ranks 1\n"));
  launcher.Forget(key_);
}

TEST_F(ProcessLauncherTest, AProgramThatIsNotThereIsAnError) {
  ProcessLauncher launcher({directory_ + "/none", directory_, "unix:/s"});
  EXPECT_EQ(launcher.Launch(key_).code(), absl::StatusCode::kInternal);
}

TEST_F(ProcessLauncherTest, ASupervisorThatCannotStartTellsWhy) {
  ProcessLauncher launcher = Script("echo 'no such library' >&2; exit 3");
  ASSERT_TRUE(launcher.Launch(key_).ok());
  WaitFor(launcher, SupervisorState::kEnded);
  const std::string error = launcher.Observe(key_).supervisor_error;
  EXPECT_THAT(error, HasSubstr("exit code 3"));
  EXPECT_THAT(error, HasSubstr("no such library"));
}

TEST_F(ProcessLauncherTest, SignalsReachALiveSupervisorAndNobodyElse) {
  ProcessLauncher launcher = Script(
      "trap 'echo term >> $D/signals' TERM\n"
      "trap 'echo usr1 >> $D/signals; exit 1' USR1\n" +
      Alive() + "while :; do sleep 0.01; done");
  ASSERT_TRUE(launcher.Launch(key_).ok());
  WaitFor(launcher, SupervisorState::kAlive);
  ASSERT_TRUE(launcher.Stop(key_, StopSignal::kTerminate).ok());
  EXPECT_TRUE(WaitUntil(
      [&] { return ReadAll(key_.directory + "/signals") == "term\n"; }));
  // Another launcher, as after a restart, finds it by its files.
  ProcessLauncher other({directory_ + "/ebb-worker", directory_, "unix:/s"});
  EXPECT_EQ(other.Observe(key_).supervisor, SupervisorState::kAlive);
  ASSERT_TRUE(other.Stop(key_, StopSignal::kKill).ok());
  WaitFor(launcher, SupervisorState::kLost);
  EXPECT_EQ(other.Observe(key_).supervisor, SupervisorState::kLost);
  EXPECT_EQ(launcher.Stop(key_, StopSignal::kKill).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(other.Stop(key_, StopSignal::kKill).code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ProcessLauncherTest, APidOfSomeoneElseIsNotOurs) {
  ProcessLauncher launcher = Script("");
  std::ofstream(key_.directory + "/supervisor.json")
      << "{\"pid\": " << getpid() << ", \"start_ticks\": 1, \"ranks\": []}";
  EXPECT_EQ(launcher.Observe(key_).supervisor, SupervisorState::kLost);
  EXPECT_FALSE(launcher.Stop(key_, StopSignal::kKill).ok());
}

TEST_F(ProcessLauncherTest, AdoptKeepsWhatNeverLivedFromEverLiving) {
  ProcessLauncher launcher = Script("");
  EXPECT_FALSE(launcher.Adopt(key_));
  EXPECT_TRUE(std::filesystem::exists(key_.directory + "/supervisor.exit"))
      << "a late supervisor finds this and does not start";
  EXPECT_FALSE(launcher.Adopt(key_)) << "asked again";
  AttemptKey none = key_;
  none.directory += "-none";
  EXPECT_FALSE(launcher.Adopt(none));
}

TEST_F(ProcessLauncherTest, AdoptTakesOverWhatHoldsTheLock) {
  ProcessLauncher launcher = Script("");
  const int fd = open((key_.directory + "/supervisor.lock").c_str(),
                      O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  EXPECT_TRUE(launcher.Adopt(key_));
  EXPECT_EQ(launcher.Observe(key_).supervisor, SupervisorState::kAwaited);
  close(fd);
  // It died before it wrote anything.
  EXPECT_EQ(launcher.Observe(key_).supervisor, SupervisorState::kLost);
}

TEST_F(ProcessLauncherTest, AdoptFindsAnEndAndALoss) {
  ProcessLauncher launcher = Script("");
  std::ofstream(key_.directory + "/supervisor.json")
      << "{\"pid\": 99999999, \"start_ticks\": 1, \"ranks\": []}";
  EXPECT_TRUE(launcher.Adopt(key_)) << "it lived";
  EXPECT_EQ(launcher.Observe(key_).supervisor, SupervisorState::kLost);
  std::ofstream(key_.directory + "/supervisor.exit")
      << "{\"pid\": 99999999, \"failed_rank\": -1, \"error\": \"\"}";
  EXPECT_TRUE(launcher.Adopt(key_));
  EXPECT_EQ(launcher.Observe(key_).supervisor, SupervisorState::kEnded);
}

TEST_F(ProcessLauncherTest, FilesOfAnyContentAreBorne) {
  ProcessLauncher launcher = Script("");
  for (const char* text : {"", "[", "[]", "{}", "{\"pid\": \"x\"}", "\xFF",
                           "{\"pid\": 1e99, \"start_ticks\": null}"}) {
    for (const char* name :
         {"supervisor.json", "supervisor.exit", "rank-0.exit"}) {
      std::ofstream(key_.directory + "/" + name) << text;
    }
    EXPECT_NE(launcher.Observe(key_).supervisor, SupervisorState::kAlive)
        << text;
    EXPECT_FALSE(launcher.Stop(key_, StopSignal::kKill).ok());
  }
}

TEST_F(ProcessLauncherTest, TheInventoryAsksOnceForEachSetting) {
  const std::string path = directory_ + "/ebb-worker";
  std::ofstream(path)
      << "#!/bin/sh\necho x >> " << directory_ << "/asked\n"
      << "echo '{\"backend\": {\"kind\": \"cpu\", \"device_model\": \"m\", "
         "\"instruction_set\": \"avx2\", \"libraries\": \"l\", \"threads\": "
         "'$3', \"runtime_bytes\": \"4096\"}}'\n";
  chmod(path.c_str(), 0700);
  LocalInventory inventory(path);
  const auto backend = inventory.Describe("cpu", 2);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ(backend->threads, 2);
  EXPECT_EQ(backend->runtime_bytes, 4096);
  ASSERT_TRUE(inventory.Describe("cpu", 2).ok());
  EXPECT_EQ(inventory.Describe("cpu", 1)->threads, 1);
  EXPECT_EQ(ReadAll(directory_ + "/asked"), "x\nx\n");
  EXPECT_EQ(inventory.known().size(), 2u);
  EXPECT_EQ(inventory.Describe("cuda", 1).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_GE(inventory.cores(), 1);
  EXPECT_GT(inventory.memory_bytes(), 0);
}

TEST_F(ProcessLauncherTest, AWorkerThatCannotDescribeItselfIsAWrongState) {
  const std::string path = directory_ + "/ebb-worker";
  std::ofstream(path) << "#!/bin/sh\necho 'bad CPU' >&2\nexit 1\n";
  chmod(path.c_str(), 0700);
  const auto backend = LocalInventory(path).Describe("cpu", 1);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("bad CPU"));
  EXPECT_EQ(LocalInventory(path + "x").Describe("cpu", 1).status().code(),
            absl::StatusCode::kFailedPrecondition);
  for (const char* text : {"", "{}", "{\"backend\": 1}", "[1]",
                           "{\"backend\": {\"kind\": \"cpu\"}}"}) {
    EXPECT_FALSE(ParseDescription(text).ok()) << text;
  }
}

TEST_F(ProcessLauncherTest, MemoryIsTheSmallestOfMachineAndCgroups) {
  const auto write = [&](const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory_ + "/root/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  };
  const std::string root = directory_ + "/root";
  write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n");
  EXPECT_EQ(AvailableMemoryBytes(root), 4000 * 1024);
  write("proc/self/cgroup", "0::/user/app\n");
  write("sys/fs/cgroup/user/app/memory.max", "max\n");
  EXPECT_EQ(AvailableMemoryBytes(root), 4000 * 1024);
  write("sys/fs/cgroup/user/memory.max", "1048576\n");
  EXPECT_EQ(AvailableMemoryBytes(root), 1048576) << "a limit above counts";
  write("sys/fs/cgroup/user/app/memory.max", "524288\n");
  EXPECT_EQ(AvailableMemoryBytes(root), 524288);
}

}  // namespace
}  // namespace ebb
