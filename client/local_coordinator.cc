// See local_coordinator.h.
#include "client/local_coordinator.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"

namespace ebb {
namespace {

constexpr char kProgram[] = "ebbd";
// The coordinator's socket inside its state directory; only its length matters
// here, the path itself comes from ebbd.json.
constexpr char kSocketName[] = "/ebbd.sock";
// Lines of the log that a failed start shows.
constexpr size_t kNumLogLines = 10;

absl::Status ErrnoStatus(absl::StatusCode code, absl::string_view what) {
  return absl::Status(code, absl::StrCat(what, ": ", std::strerror(errno)));
}

std::string LogPath(const std::string& state_directory) {
  return absl::StrCat(state_directory, "/log/ebbd.log");
}

// The last lines of what the log got after `offset`.
std::string LogTail(const std::string& path, int64_t offset) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(offset);
  std::stringstream text;
  text << file.rdbuf();
  std::vector<std::string> lines =
      absl::StrSplit(text.str(), '\n', absl::SkipEmpty());
  if (lines.size() > kNumLogLines) {
    lines.erase(lines.begin(), lines.end() - kNumLogLines);
  }
  return absl::StrJoin(lines, "\n");
}

int64_t FileSize(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

// A copy of the environment variables with EBB_STATE set, as execve wants it.
class Variables {
 public:
  Variables(const Environment& environment, const std::string& state) {
    for (const auto& [name, value] : environment.variables) {
      if (name != "EBB_STATE") texts_.push_back(absl::StrCat(name, "=", value));
    }
    texts_.push_back(absl::StrCat("EBB_STATE=", state));
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  char* const* data() { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

// Starts the program in a session of its own, in /, with nothing of ours open.
absl::StatusOr<pid_t> Launch(const Environment& environment,
                             const std::string& state_directory) {
  std::string program =
      absl::StrCat(environment.program_directory, "/", kProgram);
  if (access(program.c_str(), X_OK) != 0) {
    return ErrnoStatus(absl::StatusCode::kUnavailable,
                       absl::StrCat("cannot start the coordinator: ", program,
                                    " must stand beside ebb"));
  }
  const std::string log = LogPath(state_directory);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
                                   O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawn_file_actions_addchdir_np(&actions, "/");
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID |
                                            POSIX_SPAWN_SETSIGMASK |
                                            POSIX_SPAWN_SETSIGDEF);
  char* const arguments[] = {program.data(), nullptr};
  Variables variables(environment, state_directory);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &actions, &attributes,
                                arguments, variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    errno = error;
    return ErrnoStatus(absl::StatusCode::kUnavailable,
                       absl::StrCat("cannot start ", program));
  }
  return pid;
}

// A coordinator lives there, perhaps one that does not serve yet.
bool IsLocked(const std::string& state_directory) {
  const int lock = open(absl::StrCat(state_directory, "/lock").c_str(),
                        O_RDONLY | O_CLOEXEC);
  if (lock < 0) return false;
  const bool locked =
      flock(lock, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(lock);
  return locked;
}

// The coordinator at `state_directory` if it answers.
absl::StatusOr<CoordinatorFile> FindServing(const std::string& state_directory,
                                            const CoordinatorProbe& probe) {
  EBB_ASSIGN_OR_RETURN(const std::optional<CoordinatorFile> file,
                       ReadCoordinatorFile(state_directory));
  if (!file.has_value()) return absl::UnavailableError("none runs");
  if (file->socket.size() > kMaxSocketPath) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the coordinator's socket path is too long: set EBB_STATE to a shorter "
        "directory: ",
        file->socket));
  }
  EBB_ASSIGN_OR_RETURN(const int64_t pid, probe(file->socket));
  // A new one may answer before it has replaced the file of a dead one.
  if (pid != file->pid) {
    return absl::UnavailableError("its file is not written yet");
  }
  return *file;
}

}  // namespace

absl::StatusOr<std::string> StateDirectory(const Environment& environment) {
  std::string directory = environment.Variable("EBB_STATE");
  if (directory.empty()) {
    const std::string state = environment.Variable("XDG_STATE_HOME");
    const std::string home = environment.Variable("HOME");
    // The XDG rules take no relative directories.
    if (!state.empty() && state[0] == '/') {
      directory = absl::StrCat(state, "/ebb");
    } else if (!home.empty()) {
      directory = absl::StrCat(home, "/.local/state/ebb");
    } else {
      return absl::FailedPreconditionError(
          "no state directory: set EBB_STATE, XDG_STATE_HOME or HOME");
    }
  }
  directory = environment.AbsolutePath(directory);
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  const size_t length = directory.size() + std::strlen(kSocketName);
  if (length > kMaxSocketPath) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the path of the socket in the state directory would have ", length,
        " bytes, a Unix socket's has at most ", kMaxSocketPath,
        ": set EBB_STATE to a shorter directory: ", directory));
  }
  return directory;
}

absl::Status PrepareStateDirectory(const std::string& directory) {
  std::error_code error;
  // Parents get the usual permissions, the directory itself is ours alone.
  std::filesystem::create_directories(
      std::filesystem::path(directory).parent_path(), error);
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(absl::StatusCode::kFailedPrecondition,
                       absl::StrCat("cannot make the state directory ",
                                    directory, " (EBB_STATE names another)"));
  }
  struct stat status {};
  if (stat(directory.c_str(), &status) != 0) {
    return ErrnoStatus(absl::StatusCode::kFailedPrecondition,
                       absl::StrCat("state directory ", directory));
  }
  if (!S_ISDIR(status.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state directory is no directory: set EBB_STATE to "
                     "another: ",
                     directory));
  }
  if (status.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the state directory belongs to user ", status.st_uid, ", this is ",
        geteuid(), ": set EBB_STATE to a directory of your own: ", directory));
  }
  if ((status.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the state directory is open to other users: run `chmod 700 ",
        directory, "` or set EBB_STATE to a directory of its own"));
  }
  const std::string log = absl::StrCat(directory, "/log");
  if (mkdir(log.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(absl::StatusCode::kFailedPrecondition,
                       absl::StrCat("cannot make ", log));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<CoordinatorFile>> ReadCoordinatorFile(
    const std::string& state_directory) {
  const std::string path = absl::StrCat(state_directory, "/ebbd.json");
  std::ifstream stream(path);
  if (!stream) return std::nullopt;
  std::stringstream text;
  text << stream.rdbuf();
  const nlohmann::json json =
      nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  const auto has_text = [&](const char* name) {
    return json.contains(name) && json[name].is_string();
  };
  if (!json.is_object() || !json.contains("pid") ||
      !json["pid"].is_number_integer() || !has_text("version") ||
      !has_text("socket")) {
    return absl::DataLossError(
        absl::StrCat("not a coordinator's file, remove it: ", path));
  }
  CoordinatorFile file;
  file.pid = json["pid"].get<int64_t>();
  file.version = json["version"].get<std::string>();
  file.socket = json["socket"].get<std::string>();
  if (has_text("metrics_address")) {
    file.metrics_address = json["metrics_address"].get<std::string>();
  }
  return file;
}

bool IsCoordinatorAlive(const CoordinatorFile& file) {
  if (file.pid <= 1) return false;
  std::ifstream stream(absl::StrCat("/proc/", file.pid, "/comm"));
  std::string name;
  return std::getline(stream, name) && name == kProgram;
}

absl::StatusOr<CoordinatorFile> EnsureCoordinator(
    const Environment& environment, const std::string& state_directory,
    const CoordinatorProbe& probe, const StartOptions& options) {
  absl::StatusOr<CoordinatorFile> found = FindServing(state_directory, probe);
  if (found.ok() || absl::IsFailedPrecondition(found.status())) return found;
  EBB_RETURN_IF_ERROR(PrepareStateDirectory(state_directory));
  *environment.err << "starting the coordinator (state in " << state_directory
                   << ", `ebb stop` ends it)\n"
                   << std::flush;
  const std::string log = LogPath(state_directory);
  const int64_t log_offset = FileSize(log);
  EBB_ASSIGN_OR_RETURN(const pid_t pid, Launch(environment, state_directory));
  const absl::Time deadline = absl::Now() + options.deadline;
  bool exited = false;
  while (absl::Now() < deadline) {
    found = FindServing(state_directory, probe);
    if (found.ok()) return found;
    if (!exited && waitpid(pid, nullptr, WNOHANG) == pid) exited = true;
    // One that exits found another that has the lock, and that one will serve;
    // or it failed, and its log says why.
    if (exited && !IsLocked(state_directory)) break;
    absl::SleepFor(options.poll);
  }
  const std::string tail = LogTail(log, log_offset);
  return absl::UnavailableError(absl::StrCat(
      "the coordinator ", exited ? "exited" : "does not answer",
      " (`ebb doctor` looks for causes); its log ", log,
      tail.empty() ? " says nothing" : absl::StrCat(" ends with:\n", tail)));
}

absl::StatusOr<bool> StopCoordinator(const std::string& state_directory,
                                     absl::Duration deadline) {
  EBB_ASSIGN_OR_RETURN(const std::optional<CoordinatorFile> file,
                       ReadCoordinatorFile(state_directory));
  if (!file.has_value()) return false;
  // The descriptor names the process even if its number is used again.
  const int process = static_cast<int>(syscall(SYS_pidfd_open, file->pid, 0));
  if (process < 0) {
    if (errno == ESRCH || errno == EINVAL) return false;
    return ErrnoStatus(absl::StatusCode::kInternal, "pidfd_open");
  }
  absl::StatusOr<bool> stopped = false;
  if (IsCoordinatorAlive(*file)) {
    pollfd wait = {process, POLLIN, 0};
    const int timeout_ms =
        static_cast<int>(absl::ToInt64Milliseconds(deadline));
    if (syscall(SYS_pidfd_send_signal, process, SIGTERM, nullptr, 0) != 0) {
      if (errno != ESRCH) {
        stopped = ErrnoStatus(absl::StatusCode::kPermissionDenied,
                              absl::StrCat("cannot signal the coordinator, "
                                           "process ",
                                           file->pid));
      }
    } else if (poll(&wait, 1, timeout_ms) == 1) {
      stopped = true;
    } else {
      stopped = absl::DeadlineExceededError(absl::StrCat(
          "the coordinator, process ", file->pid, ", has not ended after ",
          absl::FormatDuration(deadline)));
    }
  }
  close(process);
  return stopped;
}

}  // namespace ebb
