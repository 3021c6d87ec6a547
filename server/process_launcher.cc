// posix_spawn, waitpid, kill and the supervisor's files.
#include "server/process_launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/log_file.h"

extern char** environ;

namespace ebb {
namespace {

using nlohmann::json;

constexpr int64_t kMaxLogBytes = 1024;

std::string FilePath(const AttemptKey& key, absl::string_view name) {
  return absl::StrCat(key.directory, "/", name);
}

// Nothing if there is no such file or it is no JSON object.
std::optional<json> ReadJson(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::stringstream text;
  text << file.rdbuf();
  json value = json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return std::nullopt;
  return value;
}

int64_t GetInt(const json& object, const char* name, int64_t otherwise) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer()
             ? found->get<int64_t>()
             : otherwise;
}

bool GetBool(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

std::string GetString(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>()
                                                     : std::string();
}

// A pid that the system has not given to someone else since.
bool IsAlive(int64_t pid, int64_t start_ticks) {
  if (pid <= 0) return false;
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::stringstream text;
  text << file.rdbuf();
  const std::string stat = text.str();
  // The name in field 2 may hold anything, parentheses too.
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return false;
  const std::vector<std::string> fields = absl::StrSplit(
      absl::string_view(stat).substr(name_end + 1), ' ', absl::SkipEmpty());
  constexpr size_t kState = 0;        // field 3 of the file
  constexpr size_t kStartTicks = 19;  // field 22
  int64_t ticks = 0;
  return fields.size() > kStartTicks && fields[kState] != "Z" &&
         fields[kState] != "X" &&
         absl::SimpleAtoi(fields[kStartTicks], &ticks) && ticks == start_ticks;
}

std::string LastLines(const std::string& path) {
  const auto offset = TailOffset(path, 5, kMaxLogBytes);
  if (!offset.ok()) return "";
  const auto text = ReadLog(path, *offset, kMaxLogBytes);
  return text.ok() ? ToUtf8(*text) : "";
}

// Written and flushed, then given its name.
bool WriteExitFile(const AttemptKey& key) {
  const std::string path = FilePath(key, "supervisor.exit");
  const std::string beside = absl::StrCat(path, ".tmp");
  const std::string text =
      "{\"pid\": 0, \"failed_rank\": -1, \"error\": \"\"}\n";
  const int fd =
      open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const bool written = write(fd, text.data(), text.size()) ==
                           static_cast<ssize_t>(text.size()) &&
                       fsync(fd) == 0;
  close(fd);
  return written && rename(beside.c_str(), path.c_str()) == 0;
}

bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

enum class LockState : uint8_t { kTaken, kFree, kNone };

// Asks who holds ATTEMPT_DIR/supervisor.lock; with kFree the caller holds it in
// `*fd` until it closes that.
LockState TryLock(const AttemptKey& key, int* fd) {
  *fd = open(FilePath(key, "supervisor.lock").c_str(),
             O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (*fd < 0) return LockState::kNone;
  if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return LockState::kFree;
  close(*fd);
  *fd = -1;
  return LockState::kTaken;
}

// The pointers that posix_spawn takes.
std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

ProcessLauncher::ProcessLauncher(ProcessLauncherOptions options)
    : options_(std::move(options)) {}

absl::Status ProcessLauncher::Launch(const AttemptKey& key) {
  std::vector<std::string> arguments = {
      options_.worker_program, "--supervise", "--directory",
      key.directory,           "--ranks",     absl::StrCat(key.num_ranks)};
  std::vector<std::string> variables = {
      absl::StrCat("EBB_STATE=", options_.state_directory),
      absl::StrCat("EBB_SERVER=", options_.server_address),
      absl::StrCat("EBB_JOB=", key.job_id),
      absl::StrCat("EBB_ATTEMPT=", key.attempt)};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const absl::string_view text = *variable;
    bool ours = false;
    for (const char* name :
         {"EBB_STATE=", "EBB_SERVER=", "EBB_JOB=", "EBB_ATTEMPT=", "EBB_RANK=",
          "EBB_ATTEMPT_DIRECTORY="}) {
      ours |= absl::StartsWith(text, name);
    }
    if (!ours) variables.emplace_back(text);
  }
  const std::string log = FilePath(key, "supervisor.log");

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  // Nothing of ours stays open in a process that outlives us.
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID |
                                            POSIX_SPAWN_SETSIGMASK |
                                            POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, options_.worker_program.c_str(), &actions, &attributes,
                  Pointers(arguments).data(), Pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return absl::InternalError(absl::StrCat(
        "cannot start ", options_.worker_program, ": ", strerror(error)));
  }
  children_[key.directory] = {pid, false, 0};
  return absl::OkStatus();
}

void ProcessLauncher::Reap(Child& child) {
  if (child.ended) return;
  int status = 0;
  const pid_t pid = waitpid(child.pid, &status, WNOHANG);
  if (pid == child.pid) {
    child.ended = true;
    child.wait_status = status;
  } else if (pid < 0 && errno == ECHILD) {
    child.ended = true;
  }
}

AttemptObservation ProcessLauncher::Observe(const AttemptKey& key) {
  std::erase_if(forgotten_, [this](Child& child) {
    Reap(child);
    return child.ended;
  });
  AttemptObservation observed;
  // First whether it lives, then its files: what a dead process wrote is there.
  const auto child = children_.find(key.directory);
  const bool own = child != children_.end();
  if (own) Reap(child->second);
  std::optional<json> info = ReadJson(FilePath(key, "supervisor.json"));
  bool alive = false;
  if (own) {
    alive = !child->second.ended;
  } else if (info) {
    alive = IsAlive(GetInt(*info, "pid", 0), GetInt(*info, "start_ticks", -1));
  } else {
    int fd = -1;
    alive = TryLock(key, &fd) == LockState::kTaken;
    if (fd >= 0) close(fd);
  }
  if (!info) info = ReadJson(FilePath(key, "supervisor.json"));
  const std::optional<json> exit = ReadJson(FilePath(key, "supervisor.exit"));
  observed.exits.resize(static_cast<size_t>(key.num_ranks));
  for (int r = 0; r < key.num_ranks; ++r) {
    const std::optional<json> rank =
        ReadJson(FilePath(key, absl::StrCat("rank-", r, ".exit")));
    if (!rank) continue;
    RankExit& end = observed.exits[static_cast<size_t>(r)].emplace();
    end.exit_code = static_cast<int>(GetInt(*rank, "exit_code", -1));
    end.signal = static_cast<int>(GetInt(*rank, "signal", 0));
    end.stopped = GetBool(*rank, "stopped");
  }
  if (alive) {
    observed.supervisor =
        info ? SupervisorState::kAlive : SupervisorState::kAwaited;
    return observed;
  }
  // A pid of 0: Adopt wrote it, for a supervisor that left nothing.
  if (exit && GetInt(*exit, "pid", 0) != 0) {
    observed.supervisor = SupervisorState::kEnded;
    observed.failed_rank = static_cast<int>(GetInt(*exit, "failed_rank", -1));
    observed.supervisor_error = GetString(*exit, "error");
    return observed;
  }
  if (own && !info) {
    const int status = child->second.wait_status;
    observed.supervisor = SupervisorState::kEnded;
    observed.supervisor_error = absl::StrCat(
        "the supervisor could not start: ",
        WIFSIGNALED(status) ? absl::StrCat("signal ", WTERMSIG(status))
                            : absl::StrCat("exit code ", WEXITSTATUS(status)),
        ": ", LastLines(FilePath(key, "supervisor.log")));
    return observed;
  }
  observed.supervisor = SupervisorState::kLost;
  return observed;
}

bool ProcessLauncher::Adopt(const AttemptKey& key) {
  int fd = -1;
  switch (TryLock(key, &fd)) {
    case LockState::kTaken:
      return true;
    case LockState::kNone:
      // Without a directory no supervisor can start in it.
      return false;
    case LockState::kFree:
      break;
  }
  bool lived = Exists(FilePath(key, "supervisor.json"));
  if (!Exists(FilePath(key, "supervisor.exit"))) {
    // Under the lock: one that is late finds the file and does not start.
    if (!WriteExitFile(key)) lived = true;  // not safe to launch again
  } else {
    lived =
        lived ||
        GetInt(
            ReadJson(FilePath(key, "supervisor.exit")).value_or(json::object()),
            "pid", 0) != 0;
  }
  close(fd);
  return lived;
}

absl::Status ProcessLauncher::Stop(const AttemptKey& key, StopSignal signal) {
  const int number = signal == StopSignal::kTerminate ? SIGTERM : SIGUSR1;
  int64_t pid = 0;
  const auto child = children_.find(key.directory);
  if (child != children_.end()) {
    // Not reaped: the pid is still the child's.
    if (!child->second.ended) pid = child->second.pid;
  } else if (const auto info = ReadJson(FilePath(key, "supervisor.json"))) {
    const int64_t found = GetInt(*info, "pid", 0);
    if (IsAlive(found, GetInt(*info, "start_ticks", -1))) pid = found;
  }
  if (pid <= 1 || kill(static_cast<pid_t>(pid), number) != 0) {
    return absl::NotFoundError("no live supervisor to signal");
  }
  return absl::OkStatus();
}

void ProcessLauncher::Forget(const AttemptKey& key) {
  const auto child = children_.find(key.directory);
  if (child == children_.end()) return;
  Reap(child->second);
  if (!child->second.ended) forgotten_.push_back(child->second);
  children_.erase(child);
}

}  // namespace ebb
