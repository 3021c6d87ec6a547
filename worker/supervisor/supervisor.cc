// One loop: wait for a signal or for the end of the grace period, look which
// ranks have ended, write their files.
//
// A rank is looked at with WNOWAIT first: as long as it is not reaped its pid,
// and so its process group's number, belongs to nobody else, and the rest of
// the group can be killed without hitting a stranger.
#include "worker/supervisor/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "monitoring/clock.h"
#include "monitoring/log.h"
#include "worker/supervisor/atomic_file.h"
#include "worker/supervisor/process_identity.h"

namespace ebb {
namespace {

using Json = nlohmann::ordered_json;

absl::Status SystemError(absl::string_view what) {
  return absl::InternalError(
      absl::StrCat("cannot ", what, ": ", std::strerror(errno)));
}

struct Rank {
  int rank = 0;
  pid_t pid = 0;
  int64_t start_ticks = 0;
  bool running = false;
  bool stopped = false;  // was sent a signal while it ran
};

// How often an OpenMP thread looks for work before it sleeps, in libgomp's
// units: some ten microseconds, longer than the gaps between kernels. libgomp's
// own default spins for milliseconds, which makes a step ten times slower as
// soon as anything else wants the cores.
constexpr char kSpinCount[] = "GOMP_SPINCOUNT=10000";

// The environment of a rank: ours, two variables, and how its threads wait
// unless the user has said so.
std::vector<std::string> RankEnvironment(const std::string& directory,
                                         int rank) {
  std::vector<std::string> environment;
  bool says_how_to_wait = false;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    says_how_to_wait |= absl::StartsWith(*variable, "OMP_WAIT_POLICY=") ||
                        absl::StartsWith(*variable, "GOMP_SPINCOUNT=");
    if (absl::StartsWith(*variable, "EBB_RANK=") ||
        absl::StartsWith(*variable, "EBB_ATTEMPT_DIRECTORY=")) {
      continue;
    }
    environment.push_back(*variable);
  }
  if (!says_how_to_wait) environment.push_back(kSpinCount);
  environment.push_back(absl::StrCat("EBB_RANK=", rank));
  environment.push_back(absl::StrCat("EBB_ATTEMPT_DIRECTORY=", directory));
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// What the child does between fork and exec.
[[noreturn]] void RunRank(pid_t supervisor, const char* log_path,
                          char* const* command, char* const* environment) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The supervisor may have died before prctl: nobody would tell us.
  if (getppid() != supervisor) _exit(127);
  int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) {
    dprintf(STDERR_FILENO, "cannot open %s: %s\n", log_path,
            std::strerror(errno));
    _exit(127);
  }
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(command[0], command, environment);
  dprintf(STDERR_FILENO, "cannot run %s: %s\n", command[0],
          std::strerror(errno));
  _exit(127);
}

class Supervisor {
 public:
  explicit Supervisor(const SupervisorOptions& options) : options_(options) {}

  absl::Status Run();

 private:
  // Takes the directory for this process; see "a directory is used once".
  absl::Status Claim();
  absl::Status StartRanks();
  absl::Status StartRank(Rank* rank);
  absl::Status WriteSupervisorFile();
  void WaitForRanks();
  // Blocks until one of signals_ comes (its number), the grace period ends (0),
  // or the directory is to be looked at (-1).
  int NextSignal();
  // The directory is the one that this process has locked.
  bool IsDirectoryPresent() const;
  // Takes note of every rank that has ended.
  void CollectEnded();
  void FinishRank(Rank* rank, const siginfo_t& info);
  // Begins the end: SIGTERM now, SIGKILL when the grace period is over.
  void Terminate();
  void Signal(int number);
  bool AnyRunning() const;
  std::string Path(absl::string_view name) const {
    return absl::StrCat(options_.directory, "/", name);
  }
  // Keeps the first error and logs all.
  void NoteError(const absl::Status& status);

  const SupervisorOptions& options_;
  Clock& clock_ = Clock::Real();
  int lock_ = -1;
  sigset_t signals_;
  std::vector<Rank> ranks_;
  std::optional<absl::Duration> kill_at_;  // monotonic
  bool terminating_ = false;
  int failed_rank_ = -1;
  std::string failure_;  // how failed_rank_ ended
  absl::Status error_;
};

absl::Status Supervisor::Claim() {
  lock_ =
      open(Path("supervisor.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) {
    return Annotate(SystemError("open supervisor.lock"), options_.directory);
  }
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "another supervisor owns the directory: ", options_.directory));
  }
  for (const char* name : {"supervisor.json", "supervisor.exit"}) {
    if (access(Path(name).c_str(), F_OK) == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the directory was used before: ", Path(name)));
    }
  }
  return absl::OkStatus();
}

absl::Status Supervisor::StartRank(Rank* rank) {
  // All that allocates is done before the fork.
  std::string log_path = Path(absl::StrCat("rank-", rank->rank, ".log"));
  std::vector<std::string> command = options_.command;
  std::vector<std::string> environment =
      RankEnvironment(options_.directory, rank->rank);
  std::vector<char*> command_pointers = Pointers(command);
  std::vector<char*> environment_pointers = Pointers(environment);
  pid_t supervisor = getpid();
  pid_t pid = fork();
  if (pid < 0) return SystemError(absl::StrCat("start rank ", rank->rank));
  if (pid == 0) {
    RunRank(supervisor, log_path.c_str(), command_pointers.data(),
            environment_pointers.data());
  }
  rank->pid = pid;
  rank->running = true;
  EBB_ASSIGN_OR_RETURN(rank->start_ticks, ReadStartTicks(pid));
  EBB_LOG(INFO) << "rank " << rank->rank << " started: pid " << pid;
  return absl::OkStatus();
}

absl::Status Supervisor::StartRanks() {
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    ranks_.push_back({.rank = rank});
    EBB_RETURN_IF_ERROR(StartRank(&ranks_.back()));
  }
  return absl::OkStatus();
}

absl::Status Supervisor::WriteSupervisorFile() {
  EBB_ASSIGN_OR_RETURN(int64_t start_ticks, ReadStartTicks(getpid()));
  Json ranks = Json::array();
  for (const Rank& rank : ranks_) {
    ranks.push_back({{"rank", rank.rank},
                     {"pid", rank.pid},
                     {"start_ticks", rank.start_ticks}});
  }
  Json file = {{"pid", getpid()},
               {"start_ticks", start_ticks},
               {"ranks", std::move(ranks)}};
  return WriteAtomicFile(Path("supervisor.json"), file.dump() + "\n");
}

bool Supervisor::AnyRunning() const {
  for (const Rank& rank : ranks_) {
    if (rank.running) return true;
  }
  return false;
}

void Supervisor::Signal(int number) {
  CollectEnded();
  for (Rank& rank : ranks_) {
    if (!rank.running) continue;
    rank.stopped = true;
    // Before its setsid the child is not yet the leader of a group.
    if (kill(-rank.pid, number) != 0) kill(rank.pid, number);
  }
}

void Supervisor::Terminate() {
  if (terminating_) return;
  terminating_ = true;
  kill_at_ = clock_.Monotonic() + options_.grace;
  Signal(SIGTERM);
}

int Supervisor::NextSignal() {
  const absl::Duration look_at = clock_.Monotonic() + options_.directory_period;
  for (;;) {
    const absl::Duration end =
        terminating_ ? kill_at_.value_or(absl::InfiniteDuration()) : look_at;
    int number;
    if (end == absl::InfiniteDuration()) {
      number = sigwaitinfo(&signals_, nullptr);
    } else {
      timespec rest = absl::ToTimespec(
          std::max(absl::ZeroDuration(), end - clock_.Monotonic()));
      number = sigtimedwait(&signals_, nullptr, &rest);
    }
    if (number > 0) return number;
    if (errno == EAGAIN) return terminating_ ? 0 : -1;
    // EINTR: stopped and continued, or traced.
  }
}

bool Supervisor::IsDirectoryPresent() const {
  struct stat held;
  struct stat found;
  return fstat(lock_, &held) == 0 &&
         stat(Path("supervisor.lock").c_str(), &found) == 0 &&
         held.st_dev == found.st_dev && held.st_ino == found.st_ino;
}

void Supervisor::FinishRank(Rank* rank, const siginfo_t& info) {
  // Its children, if it had any, do not outlive it.
  kill(-rank->pid, SIGKILL);
  waitpid(rank->pid, nullptr, 0);
  rank->running = false;
  bool exited = info.si_code == CLD_EXITED;
  int exit_code = exited ? info.si_status : -1;
  int signal_number = exited ? 0 : info.si_status;
  std::string how = exited ? absl::StrCat("exit code ", exit_code)
                           : absl::StrCat("signal ", signal_number, " (",
                                          strsignal(signal_number), ")");
  EBB_LOG(INFO) << "rank " << rank->rank << " ended: " << how
                << (rank->stopped ? ", stopped by us" : "");
  Json file = {{"rank", rank->rank},
               {"pid", rank->pid},
               {"exit_code", exit_code},
               {"signal", signal_number},
               {"stopped", rank->stopped}};
  NoteError(WriteAtomicFile(Path(absl::StrCat("rank-", rank->rank, ".exit")),
                            file.dump() + "\n"));
  if (exit_code != 0 && !rank->stopped && failed_rank_ < 0) {
    failed_rank_ = rank->rank;
    failure_ = how;
  }
}

void Supervisor::CollectEnded() {
  for (Rank& rank : ranks_) {
    if (!rank.running) continue;
    siginfo_t info = {};
    if (waitid(P_PID, rank.pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == rank.pid) {
      FinishRank(&rank, info);
    }
  }
}

void Supervisor::WaitForRanks() {
  for (;;) {
    CollectEnded();
    if (!AnyRunning()) return;
    if (failed_rank_ >= 0) Terminate();
    switch (NextSignal()) {
      case SIGTERM:
      case SIGINT:
        EBB_LOG(INFO) << "asked to end the ranks";
        Terminate();
        break;
      case SIGUSR1:
        EBB_LOG(INFO) << "asked to kill the ranks";
        Signal(SIGKILL);
        break;
      case 0:
        EBB_LOG(WARNING) << "ranks did not end within "
                         << absl::FormatDuration(options_.grace)
                         << ": killing them";
        kill_at_.reset();
        Signal(SIGKILL);
        break;
      case -1:
        if (IsDirectoryPresent()) break;
        EBB_LOG(ERROR) << "the directory was removed: ending the ranks: "
                       << options_.directory;
        Terminate();
        break;
      default:  // SIGCHLD
        break;
    }
  }
}

void Supervisor::NoteError(const absl::Status& status) {
  if (status.ok()) return;
  EBB_LOG(ERROR) << status.message();
  if (error_.ok()) error_ = status;
}

absl::Status Supervisor::Run() {
  EBB_RETURN_IF_ERROR(Claim());
  // Blocked before the first fork, so that none is lost. SIGCHLD must not be
  // ignored, as a launcher may have left it: children would be reaped unseen.
  sigemptyset(&signals_);
  for (int number : {SIGCHLD, SIGTERM, SIGINT, SIGUSR1}) {
    sigaddset(&signals_, number);
  }
  sigprocmask(SIG_BLOCK, &signals_, nullptr);
  signal(SIGCHLD, SIG_DFL);

  EBB_RETURN_IF_ERROR(WriteSupervisorFile());
  absl::Status started = StartRanks();
  if (started.ok()) started = WriteSupervisorFile();
  if (!started.ok()) {
    NoteError(started);
    Signal(SIGKILL);
  }
  WaitForRanks();

  Json file = {{"pid", getpid()},
               {"failed_rank", failed_rank_},
               {"error", std::string(error_.message())}};
  NoteError(WriteAtomicFile(
      Path("supervisor.exit"),
      file.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"));
  EBB_RETURN_IF_ERROR(error_);
  if (failed_rank_ >= 0) {
    return absl::UnavailableError(
        absl::StrCat("rank ", failed_rank_, " failed: ", failure_));
  }
  return absl::OkStatus();
}

}  // namespace

// The lock stays with the process: its end is what gives it back.
absl::Status Supervise(const SupervisorOptions& options) {
  EBB_CHECK(!options.command.empty());
  return Supervisor(options).Run();
}

}  // namespace ebb
