// See child_process.h.
#include "client/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/status.h"

extern char** environ;

namespace ebb {
namespace {

constexpr size_t kMaxOutputBytes = 16 << 20;

absl::StatusOr<std::string> ReadAll(int descriptor, absl::Time deadline) {
  std::string output;
  char buffer[4096];
  while (true) {
    const int64_t left_ms =
        std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - absl::Now()));
    pollfd wait = {descriptor, POLLIN, 0};
    const int ready = poll(&wait, 1, static_cast<int>(left_ms));
    if (ready == 0) return absl::DeadlineExceededError("no end in time");
    if (ready < 0 && errno == EINTR) continue;
    const ssize_t num_read = read(descriptor, buffer, sizeof(buffer));
    if (num_read == 0) return output;
    if (num_read < 0) return absl::InternalError(std::strerror(errno));
    output.append(buffer, static_cast<size_t>(num_read));
    if (output.size() > kMaxOutputBytes) {
      return absl::ResourceExhaustedError("prints without end");
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ReadProgramOutput(
    const std::string& program, const std::vector<std::string>& arguments,
    absl::Duration deadline) {
  int ends[2];
  EBB_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
                                   O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null",
                                   O_WRONLY, 0);
  std::vector<std::string> texts = {program};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &actions, nullptr,
                                pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return absl::NotFoundError(
        absl::StrCat("cannot start ", program, ": ", std::strerror(error)));
  }
  absl::StatusOr<std::string> output = ReadAll(ends[0], absl::Now() + deadline);
  close(ends[0]);
  if (!output.ok()) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!output.ok()) return Annotate(output.status(), program);
  if (WIFSIGNALED(status)) {
    return absl::InternalError(
        absl::StrCat(program, ": signal ", WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != 0) {
    return absl::InternalError(
        absl::StrCat(program, ": exit code ", WEXITSTATUS(status)));
  }
  return output;
}

}  // namespace ebb
