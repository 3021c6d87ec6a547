// posix_spawn, a pipe for each of the two outputs, and waitpid.
#include "server/job_tool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/status.h"
#include "server/log_file.h"

extern char** environ;

namespace ebb {
namespace {

// How often a tool that says nothing is asked whether it is still wanted.
constexpr absl::Duration kPollPeriod = absl::Milliseconds(100);
constexpr absl::Duration kKillGrace = absl::Seconds(2);
constexpr size_t kPieceBytes = 64 << 10;
// Of standard error the last bytes are kept: the message is at the end.
constexpr size_t kMaxComplaintBytes = 4096;
constexpr int kFirstStatusExit = 64;
constexpr absl::string_view kMessageStart = "ebb-worker: ";

// Owns a descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void Reset(int fd) {
    Close();
    fd_ = fd;
  }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

absl::Status SystemError(const char* what) {
  return absl::InternalError(absl::StrCat(what, ": ", strerror(errno)));
}

// A file without a name that holds the text, at its start: unlike a pipe it
// takes any length at once.
absl::Status FillInput(const std::string& text, Descriptor& input) {
  input.Reset(memfd_create("input", MFD_CLOEXEC));
  if (input.get() < 0) return SystemError("memfd_create");
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n =
        write(input.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return SystemError("write");
    if (n > 0) done += static_cast<size_t>(n);
  }
  if (lseek(input.get(), 0, SEEK_SET) != 0) return SystemError("lseek");
  return absl::OkStatus();
}

absl::Status OpenPipe(Descriptor& from, Descriptor& to) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe2");
  from.Reset(ends[0]);
  to.Reset(ends[1]);
  return absl::OkStatus();
}

absl::StatusOr<pid_t> Spawn(const std::string& program,
                            const std::vector<std::string>& arguments,
                            int input, int output, int errors) {
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, 0);
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  posix_spawn_file_actions_adddup2(&actions, errors, 2);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &actions, &attributes,
                                argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot start ", program, ": ", strerror(error)));
  }
  return pid;
}

// A child from its start to its end.
class RunningTool {
 public:
  RunningTool(pid_t pid, Descriptor& output, Descriptor& errors)
      : pid_(pid), output_(output), errors_(errors) {}

  // Reads both outputs to their ends.
  void Follow(const ToolCall& call) {
    while (output_.get() >= 0 || errors_.get() >= 0) {
      if (!given_up_ && call.is_cancelled()) GiveUp();
      if (given_up_ && absl::Now() > kill_time_) {
        kill(pid_, SIGKILL);
        // Whoever else holds the pipes: what they say is not waited for.
        return;
      }
      pollfd polled[] = {{output_.get(), POLLIN, 0},
                         {errors_.get(), POLLIN, 0}};
      if (poll(polled, 2,
               static_cast<int>(absl::ToInt64Milliseconds(kPollPeriod))) <= 0) {
        continue;
      }
      if (polled[0].revents != 0) {
        const std::string piece = Read(output_);
        if (!piece.empty() && !given_up_ && !call.on_output(piece)) GiveUp();
      }
      if (polled[1].revents != 0) {
        complaint_ += Read(errors_);
        if (complaint_.size() > kMaxComplaintBytes) {
          complaint_.erase(0, complaint_.size() - kMaxComplaintBytes);
        }
      }
    }
  }

  // Waits for its end, which its closed outputs announce.
  absl::Status End(const ToolCall& call) {
    int status = 0;
    while (true) {
      const pid_t ended = waitpid(pid_, &status, WNOHANG);
      if (ended == pid_) break;
      if (ended < 0 && errno != EINTR) return SystemError("waitpid");
      if (!given_up_ && call.is_cancelled()) GiveUp();
      if (given_up_ && absl::Now() > kill_time_) kill(pid_, SIGKILL);
      poll(nullptr, 0, 1);
    }
    if (given_up_) return absl::CancelledError("the call was given up");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
    return Error(status);
  }

 private:
  void GiveUp() {
    given_up_ = true;
    kill_time_ = absl::Now() + kKillGrace;
    kill(pid_, SIGTERM);
  }

  // What is there; empty at the end, and the descriptor is closed then.
  static std::string Read(Descriptor& from) {
    std::string piece(kPieceBytes, '\0');
    const ssize_t n = read(from.get(), piece.data(), piece.size());
    if (n == 0 || (n < 0 && errno != EINTR)) from.Close();
    piece.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return piece;
  }

  absl::Status Error(int status) const {
    const int code =
        WIFEXITED(status) ? WEXITSTATUS(status) - kFirstStatusExit : -1;
    const absl::string_view said = absl::StripAsciiWhitespace(complaint_);
    const size_t start = said.rfind(kMessageStart);
    // 16: UNAUTHENTICATED, the last code.
    if (code >= 1 && code <= 16 && start != absl::string_view::npos) {
      return absl::Status(static_cast<absl::StatusCode>(code),
                          ToUtf8(said.substr(start + kMessageStart.size())));
    }
    return absl::InternalError(absl::StrCat(
        "the worker ended with ",
        WIFSIGNALED(status) ? absl::StrCat("signal ", WTERMSIG(status))
                            : absl::StrCat("exit code ", WEXITSTATUS(status)),
        said.empty() ? "" : ": ", ToUtf8(said)));
  }

  const pid_t pid_;
  Descriptor& output_;
  Descriptor& errors_;
  std::string complaint_;
  bool given_up_ = false;
  absl::Time kill_time_;
};

}  // namespace

JobTools::JobTools(std::string worker_program, int max_running)
    : worker_program_(std::move(worker_program)), max_running_(max_running) {}

absl::Status JobTools::Run(const ToolCall& call) {
  struct Place {
    std::atomic<int>& taken;
    ~Place() { taken.fetch_sub(1); }
  } const place{running_};
  if (running_.fetch_add(1) >= max_running_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("at most ", max_running_,
                     " calls that start a worker may run at once: try again "
                     "later"));
  }
  Descriptor input, output, output_end, errors, errors_end;
  EBB_RETURN_IF_ERROR(FillInput(call.input, input));
  EBB_RETURN_IF_ERROR(OpenPipe(output, output_end));
  EBB_RETURN_IF_ERROR(OpenPipe(errors, errors_end));
  EBB_ASSIGN_OR_RETURN(const pid_t pid,
                       Spawn(worker_program_, call.arguments, input.get(),
                             output_end.get(), errors_end.get()));
  input.Close();
  output_end.Close();
  errors_end.Close();
  RunningTool tool(pid, output, errors);
  tool.Follow(call);
  return tool.End(call);
}

}  // namespace ebb
