// The supervisor in a process of its own, over ranks that are small shell
// scripts.
#include "worker/supervisor/supervisor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "monitoring/log.h"
#include "worker/supervisor/detach.h"
#include "worker/supervisor/process_identity.h"

namespace ebb {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;

// Longest wait for something that should happen at once.
constexpr absl::Duration kPatience = absl::Seconds(30);

bool Becomes(const std::function<bool()>& condition) {
  absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

// The process is gone or only waits to be reaped by somebody else.
bool Ended(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string stat(std::istreambuf_iterator<char>(file), {});
  return stat.empty() || absl::StrContains(stat, ") Z ");
}

class Supervisor : public ::testing::Test {
 protected:
  Supervisor() {
    std::string pattern = ::testing::TempDir() + "/supervisor.XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~Supervisor() override {
    if (supervisor_ > 0) {
      kill(supervisor_, SIGKILL);
      waitpid(supervisor_, nullptr, 0);
    }
    std::filesystem::remove_all(directory_);
  }

  // Starts a supervisor over `num_ranks` ranks that run `script`.
  void Start(int num_ranks, const std::string& script,
             absl::Duration grace = kPatience) {
    Start({directory_, num_ranks, {"/bin/sh", "-c", script}, grace});
  }
  void Start(const SupervisorOptions& options) {
    supervisor_ = fork();
    ASSERT_GE(supervisor_, 0);
    if (supervisor_ == 0) {
      if (!DetachProcess(Path("supervisor.log")).ok()) _exit(3);
      absl::Status status = Supervise(options);
      if (!status.ok()) EBB_LOG(ERROR) << status.ToString();
      _exit(status.ok() ? 0 : 1);
    }
  }

  // Waits for the supervisor's end and returns its exit code.
  int Wait() {
    int status = 0;
    EXPECT_TRUE(
        Becomes([&] { return waitpid(supervisor_, &status, WNOHANG) != 0; }));
    supervisor_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string Path(const std::string& name) const {
    return directory_ + "/" + name;
  }
  bool Exists(const std::string& name) const {
    return std::filesystem::exists(Path(name));
  }
  std::string Text(const std::string& name) const {
    std::ifstream file(Path(name));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  json File(const std::string& name) const {
    return json::parse(Text(name), nullptr, false);
  }
  // Waits until all ranks are started and listed.
  json StartedRanks(size_t num_ranks) {
    json file;
    EXPECT_TRUE(Becomes([&] {
      file = Exists("supervisor.json") ? File("supervisor.json") : json();
      return file.is_object() && file["ranks"].size() == num_ranks;
    }));
    return file;
  }

  std::string directory_;
  pid_t supervisor_ = 0;
};

TEST_F(Supervisor, WritesHowEachRankEnded) {
  Start(2, "echo out $EBB_RANK $EBB_ATTEMPT_DIRECTORY; echo err >&2");
  pid_t pid = supervisor_;
  EXPECT_EQ(Wait(), 0);
  json ranks = File("supervisor.json")["ranks"];
  ASSERT_EQ(ranks.size(), 2u);
  for (int rank : {0, 1}) {
    json exit = File(absl::StrCat("rank-", rank, ".exit"));
    EXPECT_EQ(exit, (json{{"rank", rank},
                          {"pid", ranks[rank]["pid"]},
                          {"exit_code", 0},
                          {"signal", 0},
                          {"stopped", false}}));
    EXPECT_EQ(Text(absl::StrCat("rank-", rank, ".log")),
              absl::StrCat("out ", rank, " ", directory_, "\nerr\n"));
  }
  EXPECT_EQ(File("supervisor.exit"),
            (json{{"pid", pid}, {"failed_rank", -1}, {"error", ""}}));
}

TEST_F(Supervisor, NamesProcessesByPidAndStart) {
  Start(1, "exec sleep 1000");
  json file = StartedRanks(1);
  EXPECT_EQ(file["pid"], supervisor_);
  EXPECT_EQ(file["start_ticks"], ReadStartTicks(supervisor_).value());
  pid_t rank = file["ranks"][0]["pid"];
  EXPECT_EQ(file["ranks"][0]["start_ticks"], ReadStartTicks(rank).value());
  kill(supervisor_, SIGUSR1);
  Wait();
}

TEST_F(Supervisor, IsIndependentOfItsStarter) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Start(1, "ls /proc/self/fd | wc -l; exec sleep 1000");
  close(ends[1]);
  json file = StartedRanks(1);
  // End of file: neither supervisor nor rank has kept the pipe.
  char byte;
  EXPECT_EQ(read(ends[0], &byte, 1), 0);
  close(ends[0]);
  EXPECT_EQ(getsid(supervisor_), supervisor_);
  pid_t rank = file["ranks"][0]["pid"];
  EXPECT_TRUE(Becomes([&] { return getsid(rank) == rank; }));
  EXPECT_EQ(std::filesystem::read_symlink(
                absl::StrCat("/proc/", supervisor_, "/cwd")),
            "/");
  // 0, 1, 2 and the directory that ls reads.
  EXPECT_TRUE(Becomes([&] { return Text("rank-0.log") == "4\n"; }))
      << Text("rank-0.log");
  kill(supervisor_, SIGHUP);
  kill(supervisor_, SIGPIPE);
  kill(supervisor_, SIGTERM);
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(File("rank-0.exit")["signal"], SIGTERM);
}

TEST_F(Supervisor, RanksHaveDefaultSignals) {
  Start(1, "grep -E 'Sig(Blk|Ign)' /proc/self/status");
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Text("rank-0.log"),
            "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_F(Supervisor, FailingRankEndsTheOthers) {
  Start(3, "if [ $EBB_RANK = 1 ]; then exit 7; fi; exec sleep 1000");
  EXPECT_EQ(Wait(), 1);
  EXPECT_EQ(File("rank-1.exit")["exit_code"], 7);
  EXPECT_EQ(File("rank-1.exit")["stopped"], false);
  for (const char* name : {"rank-0.exit", "rank-2.exit"}) {
    EXPECT_EQ(File(name)["exit_code"], -1);
    EXPECT_EQ(File(name)["signal"], SIGTERM);
    EXPECT_EQ(File(name)["stopped"], true);
  }
  EXPECT_EQ(File("supervisor.exit")["failed_rank"], 1);
  EXPECT_THAT(Text("supervisor.log"), HasSubstr("rank 1 failed: exit code 7"));
}

TEST_F(Supervisor, RankKilledBySomebodyElseIsAFailure) {
  Start(2, "if [ $EBB_RANK = 1 ]; then kill -9 $$; fi; exec sleep 1000");
  EXPECT_EQ(Wait(), 1);
  EXPECT_EQ(File("rank-1.exit")["signal"], SIGKILL);
  EXPECT_EQ(File("rank-1.exit")["stopped"], false);
  EXPECT_EQ(File("rank-0.exit")["stopped"], true);
  EXPECT_EQ(File("supervisor.exit")["failed_rank"], 1);
}

TEST_F(Supervisor, SuccessfulRankLeavesTheOthersAlone) {
  Start(2,
        "if [ $EBB_RANK = 1 ]; then exit 0; fi; "
        "cd $EBB_ATTEMPT_DIRECTORY; "
        "while [ ! -e rank-1.exit ]; do sleep 0.01; done");
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(File("rank-0.exit")["exit_code"], 0);
  EXPECT_EQ(File("rank-0.exit")["stopped"], false);
}

TEST_F(Supervisor, TerminatedRankMayEndInItsOwnWay) {
  Start(1,
        "trap 'exit 5' TERM; echo ready; "
        "while :; do sleep 0.01; done");
  EXPECT_TRUE(Becomes([&] { return Text("rank-0.log") == "ready\n"; }));
  kill(supervisor_, SIGTERM);
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(File("rank-0.exit")["exit_code"], 5);
  EXPECT_EQ(File("rank-0.exit")["stopped"], true);
  EXPECT_EQ(File("supervisor.exit")["failed_rank"], -1);
}

TEST_F(Supervisor, DeafRankIsKilledAfterTheGracePeriod) {
  Start(1,
        "trap '' TERM; echo ready; "
        "while :; do sleep 0.01; done",
        absl::Milliseconds(20));
  EXPECT_TRUE(Becomes([&] { return Text("rank-0.log") == "ready\n"; }));
  kill(supervisor_, SIGTERM);
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(File("rank-0.exit")["signal"], SIGKILL);
  EXPECT_EQ(File("rank-0.exit")["stopped"], true);
}

TEST_F(Supervisor, EndsTheRanksWhereItsDirectoryWasRemoved) {
  Start({directory_,
         1,
         {"/bin/sh", "-c", "exec sleep 1000"},
         kPatience,
         absl::Milliseconds(20)});
  const pid_t rank = StartedRanks(1)["ranks"][0]["pid"];
  // The supervisor writes into it meanwhile.
  EXPECT_TRUE(Becomes([&] {
    std::error_code error;
    std::filesystem::remove_all(directory_, error);
    return !std::filesystem::exists(directory_);
  }));
  Wait();
  EXPECT_TRUE(Becomes([&] { return Ended(rank); }));
}

TEST_F(Supervisor, Sigusr1KillsAtOnce) {
  Start(2, "trap '' TERM; echo ready; while :; do sleep 0.01; done");
  EXPECT_TRUE(Becomes([&] {
    return Text("rank-0.log") == "ready\n" && Text("rank-1.log") == "ready\n";
  }));
  kill(supervisor_, SIGTERM);  // ignored by the ranks, grace is long
  kill(supervisor_, SIGUSR1);
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(File("rank-0.exit")["signal"], SIGKILL);
  EXPECT_EQ(File("rank-1.exit")["signal"], SIGKILL);
}

TEST_F(Supervisor, ChildrenOfARankEndWithIt) {
  Start(1, "sleep 1000 & echo $!");
  EXPECT_EQ(Wait(), 0);
  pid_t child = std::stoi(Text("rank-0.log"));
  EXPECT_TRUE(Becomes([&] { return Ended(child); }));
}

TEST_F(Supervisor, RanksDieWithAKilledSupervisor) {
  Start(2, "trap '' TERM HUP; echo ready; while :; do sleep 0.01; done");
  json file = StartedRanks(2);
  kill(supervisor_, SIGKILL);
  EXPECT_EQ(Wait(), -1);
  for (int rank : {0, 1}) {
    pid_t pid = file["ranks"][rank]["pid"];
    EXPECT_TRUE(Becomes([&] { return Ended(pid); }));
    EXPECT_FALSE(Exists(absl::StrCat("rank-", rank, ".exit")));
  }
  EXPECT_FALSE(Exists("supervisor.exit"));
  // The lock is free: who takes it knows that nobody lives.
  int lock = open(Path("supervisor.lock").c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_TRUE(Becomes([&] { return flock(lock, LOCK_EX | LOCK_NB) == 0; }));
  close(lock);
}

TEST_F(Supervisor, HoldsTheLockWhileItLivesAndRanksDoNot) {
  Start(1, "exec sleep 1000");
  StartedRanks(1);
  int lock = open(Path("supervisor.lock").c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_NE(flock(lock, LOCK_EX | LOCK_NB), 0);
  close(lock);
  kill(supervisor_, SIGTERM);
  Wait();
}

TEST_F(Supervisor, RefusesADirectoryThatIsInUse) {
  int lock =
      open(Path("supervisor.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  absl::Status status = Supervise({directory_, 1, {"/bin/true"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_FALSE(Exists("supervisor.json"));
  close(lock);
}

TEST_F(Supervisor, RefusesADirectoryThatWasUsed) {
  for (const char* name : {"supervisor.json", "supervisor.exit"}) {
    std::ofstream(Path(name)) << "{}";
    absl::Status status = Supervise({directory_, 1, {"/bin/true"}});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_FALSE(Exists("rank-0.log"));
    std::filesystem::remove(Path(name));
  }
}

TEST_F(Supervisor, MissingProgramIsExitCode127WithALineInTheLog) {
  Start({directory_, 1, {"/nonexistent/program"}});
  EXPECT_EQ(Wait(), 1);
  EXPECT_EQ(File("rank-0.exit")["exit_code"], 127);
  EXPECT_EQ(Text("rank-0.log"),
            "cannot run /nonexistent/program: No such file or directory\n");
}

TEST_F(Supervisor, NoUnfinishedFileStays) {
  Start(2, "exit 0");
  EXPECT_EQ(Wait(), 0);
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
}

TEST_F(Supervisor, WorksWhereSigchldWasIgnored) {
  struct sigaction before;
  sigaction(SIGCHLD, nullptr, &before);
  signal(SIGCHLD, SIG_IGN);
  Start(1, "exit 4");
  sigaction(SIGCHLD, &before, nullptr);
  EXPECT_EQ(Wait(), 1);
  EXPECT_EQ(File("rank-0.exit")["exit_code"], 4);
}

TEST(ProcessIdentity, NameMayHoldParenthesesAndSpaces) {
  EXPECT_EQ(ParseStartTicks("7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 "
                            "15 16 17 18 4242 20 21\n")
                .value(),
            4242);
}

TEST(ProcessIdentity, OtherTextIsAnError) {
  EXPECT_FALSE(ParseStartTicks("").ok());
  EXPECT_FALSE(ParseStartTicks("7 (a) S 1 2").ok());
}

TEST(ProcessIdentity, MissingProcessIsNotFound) {
  EXPECT_EQ(ReadStartTicks(0).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ebb
