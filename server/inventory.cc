// Asks ebb-worker and the kernel.
#include "server/inventory.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/status.h"
#include "server/log_file.h"

extern char** environ;

namespace ebb {
namespace {

using nlohmann::json;

// Probing compiles kernels and measures memory: a second or two, more under
// load.
constexpr absl::Duration kDescribeTimeout = absl::Seconds(60);
constexpr size_t kMaxDescriptionBytes = 4 << 20;

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

int CountCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// Bytes below the limit of one cgroup; no limit: the largest number.
int64_t CgroupRoom(const std::string& directory) {
  int64_t limit = 0;
  const std::string text = ReadText(absl::StrCat(directory, "/memory.max"));
  if (!absl::SimpleAtoi(text, &limit)) {
    return std::numeric_limits<int64_t>::max();  // "max", or none
  }
  return limit;
}

// Runs the program and returns what it printed.
absl::StatusOr<std::string> Capture(std::vector<std::string> arguments) {
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0) return absl::InternalError("no pipe");
  if (pipe2(err, O_CLOEXEC) != 0) {
    close(out[0]);
    close(out[1]);
    return absl::InternalError("no pipe");
  }
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, arguments[0].c_str(), &actions,
                                &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(out[1]);
  close(err[1]);
  if (error != 0) {
    close(out[0]);
    close(err[0]);
    return absl::FailedPreconditionError(
        absl::StrCat("cannot start ", arguments[0], ": ", strerror(error)));
  }
  std::string text;
  std::string complaint;
  struct {
    int fd;
    std::string* into;
  } streams[] = {{out[0], &text}, {err[0], &complaint}};
  const absl::Time deadline = absl::Now() + kDescribeTimeout;
  bool late = false;
  int open_streams = 2;
  while (open_streams > 0 && !late) {
    pollfd polled[] = {{streams[0].fd, POLLIN, 0}, {streams[1].fd, POLLIN, 0}};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    late = left <= 0 || poll(polled, 2, static_cast<int>(left)) == 0;
    for (int s = 0; s < 2; ++s) {
      if (streams[s].fd < 0 || polled[s].revents == 0) continue;
      char block[4096];
      const ssize_t n = read(streams[s].fd, block, sizeof(block));
      if (n > 0 && streams[s].into->size() < kMaxDescriptionBytes) {
        streams[s].into->append(block, static_cast<size_t>(n));
      } else if (n <= 0 && !(n < 0 && errno == EINTR)) {
        close(streams[s].fd);
        streams[s].fd = -1;
        --open_streams;
      }
    }
  }
  for (auto& stream : streams) {
    if (stream.fd >= 0) close(stream.fd);
  }
  if (late) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (late) {
    return absl::UnavailableError(
        absl::StrCat(arguments[0], " gave no answer within ",
                     absl::FormatDuration(kDescribeTimeout)));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    constexpr size_t kTail = 1000;
    if (complaint.size() > kTail) complaint.erase(0, complaint.size() - kTail);
    return absl::FailedPreconditionError(absl::StrCat(
        arguments[0], " --describe failed: ",
        WIFEXITED(status) ? absl::StrCat("exit code ", WEXITSTATUS(status))
                          : absl::StrCat("signal ", WTERMSIG(status)),
        ": ", ToUtf8(complaint)));
  }
  return text;
}

}  // namespace

int64_t AvailableMemoryBytes(const std::string& root) {
  int64_t available = std::numeric_limits<int64_t>::max();
  for (const absl::string_view line :
       absl::StrSplit(ReadText(absl::StrCat(root, "/proc/meminfo")), '\n')) {
    if (!absl::StartsWith(line, "MemAvailable:")) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kibibytes = 0;
    if (words.size() >= 2 && absl::SimpleAtoi(words[1], &kibibytes)) {
      available = kibibytes * 1024;
    }
  }
  // cgroup v2: "0::/user.slice/..."; a limit above holds for all below.
  for (const absl::string_view line : absl::StrSplit(
           ReadText(absl::StrCat(root, "/proc/self/cgroup")), '\n')) {
    if (!absl::StartsWith(line, "0::/")) continue;
    std::string path(line.substr(3));
    while (true) {
      available = std::min(
          available, CgroupRoom(absl::StrCat(root, "/sys/fs/cgroup", path)));
      const size_t slash = path.rfind('/');
      if (slash == std::string::npos || path.empty()) break;
      path.resize(slash);
    }
  }
  // cgroup v1, where the memory controller is mounted for this process alone.
  int64_t limit = 0;
  if (absl::SimpleAtoi(
          ReadText(absl::StrCat(root,
                                "/sys/fs/cgroup/memory/memory.limit_in_bytes")),
          &limit) &&
      limit > 0) {
    available = std::min(available, limit);
  }
  constexpr int64_t kUnknown = int64_t{1} << 30;  // nothing could be read
  return available == std::numeric_limits<int64_t>::max() ? kUnknown
                                                          : available;
}

absl::StatusOr<Backend> ParseDescription(absl::string_view text) {
  const json value = json::parse(text.begin(), text.end(), nullptr,
                                 /*allow_exceptions=*/false);
  if (!value.is_object() || !value.contains("backend") ||
      !value["backend"].is_object()) {
    return absl::InternalError(
        "the description is no JSON object with a member `backend`");
  }
  const json& object = value["backend"];
  Backend backend;
  for (const auto& [name, member] :
       {std::pair("kind", &backend.kind),
        std::pair("device_model", &backend.device_model),
        std::pair("instruction_set", &backend.instruction_set),
        std::pair("libraries", &backend.libraries)}) {
    if (!object.contains(name) || !object[name].is_string()) {
      return absl::InternalError(
          absl::StrCat("the description has no text backend.", name));
    }
    *member = object[name].get<std::string>();
  }
  int64_t threads = 0;
  for (const auto& [name, member] :
       {std::pair("threads", &threads),
        std::pair("runtime_bytes", &backend.runtime_bytes)}) {
    // 64-bit numbers may be written as text, as everywhere in our JSON.
    const bool found =
        object.contains(name) &&
        (object[name].is_number_integer()
             ? (*member = object[name].get<int64_t>(), true)
             : object[name].is_string() &&
                   absl::SimpleAtoi(object[name].get<std::string>(), member));
    if (!found || *member < 0) {
      return absl::InternalError(
          absl::StrCat("the description has no number backend.", name));
    }
  }
  backend.threads = static_cast<int>(threads);
  return backend;
}

LocalInventory::LocalInventory(std::string worker_program)
    : worker_program_(std::move(worker_program)),
      cores_(CountCores()),
      memory_bytes_(AvailableMemoryBytes("")) {}

int64_t LocalInventory::available_bytes() const {
  return AvailableMemoryBytes("");
}

absl::StatusOr<Backend> LocalInventory::Describe(const std::string& device,
                                                 int threads) {
  if (device != "cpu") {
    return absl::UnimplementedError(absl::StrCat(
        "resources.device: this machine has no ", device, " device; use cpu"));
  }
  absl::MutexLock lock(&mutex_);
  const auto found = backends_.find(threads);
  if (found != backends_.end()) return found->second;
  EBB_ASSIGN_OR_RETURN(const std::string text,
                       Capture({worker_program_, "--describe", "--threads",
                                absl::StrCat(threads)}));
  absl::StatusOr<Backend> backend = ParseDescription(text);
  if (!backend.ok()) return Annotate(backend.status(), worker_program_);
  backends_[threads] = *backend;
  return *backend;
}

std::vector<Backend> LocalInventory::known() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Backend> backends;
  for (const auto& [threads, backend] : backends_) backends.push_back(backend);
  return backends;
}

}  // namespace ebb
