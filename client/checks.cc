// See checks.h.
#include "client/checks.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/child_process.h"
#include "client/connection.h"
#include "client/format.h"
#include "client/local_coordinator.h"
#include "client/version.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"

namespace ebb {
namespace {

// A job of two million parameters needs some hundred MiB.
constexpr int64_t kLowMemoryBytes = int64_t{512} << 20;
constexpr int64_t kLowDiskBytes = int64_t{1} << 30;
constexpr int64_t kNoDiskBytes = int64_t{64} << 20;
// The worker tries its libraries out before it answers.
constexpr absl::Duration kDescribeDeadline = absl::Seconds(30);
constexpr int kConnectTimeoutMs = 2000;

// Whether something accepts connections at "HOST:PORT".
bool Accepts(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found) !=
      0) {
    return false;
  }
  const int connection =
      socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  bool accepts = false;
  if (connection >= 0) {
    connect(connection, found->ai_addr, found->ai_addrlen);
    pollfd wait = {connection, POLLOUT, 0};
    int error = -1;
    socklen_t length = sizeof(error);
    accepts =
        poll(&wait, 1, kConnectTimeoutMs) == 1 &&
        getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &length) == 0 &&
        error == 0;
    close(connection);
  }
  freeaddrinfo(found);
  return accepts;
}

// The directory itself, or the nearest parent that exists.
std::string ExistingDirectory(std::filesystem::path directory) {
  std::error_code error;
  while (!std::filesystem::exists(directory, error) &&
         directory.has_relative_path()) {
    directory = directory.parent_path();
  }
  return directory.string();
}

// The first number in a file, or nothing ("max").
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream stream(path);
  int64_t number = 0;
  if (stream >> number) return number;
  return std::nullopt;
}

Check MetricsCheck(const std::string& address) {
  Check check{.name = "metrics"};
  if (address.empty()) {
    check.detail = "off";
  } else if (Accepts(address)) {
    check.detail = absl::StrCat("http://", address, "/metrics");
  } else {
    check.result = Check::kWarn;
    check.detail = absl::StrCat("nothing answers at ", address);
    check.fix = "run `ebb stop`, set EBB_METRICS_ADDRESS to a free address";
  }
  return check;
}

}  // namespace

std::string ResultWord(Check::Result result) {
  return result == Check::kOk ? "ok" : result == Check::kWarn ? "warn" : "fail";
}

Check CheckStateDirectory(const Environment& environment) {
  Check check{.name = "state directory"};
  const absl::StatusOr<std::string> directory = StateDirectory(environment);
  if (!directory.ok()) {
    check.result = Check::kFail;
    check.detail = std::string(directory.status().message());
    check.fix = "set EBB_STATE";
    return check;
  }
  check.detail = *directory;
  struct stat status {};
  if (stat(directory->c_str(), &status) != 0) {
    const std::string parent = ExistingDirectory(*directory);
    if (access(parent.c_str(), W_OK) == 0) {
      absl::StrAppend(&check.detail, " (will be made)");
    } else {
      check.result = Check::kFail;
      absl::StrAppend(&check.detail, " cannot be made: no right to write in ",
                      parent);
      check.fix = "set EBB_STATE to a directory that you may write";
    }
    return check;
  }
  absl::StrAppendFormat(&check.detail, " (mode %04o)",
                        static_cast<unsigned>(status.st_mode) & 07777u);
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid()) {
    check.result = Check::kFail;
    check.fix = "set EBB_STATE to a directory of your own";
  } else if ((status.st_mode & 077) != 0) {
    check.result = Check::kFail;
    check.fix = absl::StrCat("chmod 700 ", *directory);
  }
  return check;
}

Check CheckSocketPath(const Environment& environment) {
  Check check{.name = "socket path"};
  const absl::StatusOr<std::string> directory = StateDirectory(environment);
  if (!directory.ok()) {
    check.result = Check::kFail;
    check.detail = std::string(directory.status().message());
    check.fix = "set EBB_STATE to a shorter directory";
  } else {
    check.detail = absl::StrCat("fits into ", kMaxSocketPath, " bytes");
  }
  return check;
}

std::vector<Check> CheckCoordinator(const Environment& environment,
                                    const std::string& server_option,
                                    const CallTiming& timing) {
  Check check{.name = "coordinator"};
  const auto fail = [&](const absl::Status& status, absl::string_view fix) {
    check.result = Check::kFail;
    check.detail = std::string(status.message());
    check.fix = std::string(fix);
    return std::vector<Check>{check};
  };
  const std::string named = NamedServer(environment, server_option);
  std::string target;
  if (!named.empty()) {
    const absl::StatusOr<std::string> address =
        ServerTarget(environment, named);
    if (!address.ok()) return fail(address.status(), "correct the address");
    target = *address;
  } else {
    const absl::StatusOr<std::string> directory = StateDirectory(environment);
    if (!directory.ok()) return fail(directory.status(), "set EBB_STATE");
    const auto file = ReadCoordinatorFile(*directory);
    if (!file.ok()) return fail(file.status(), "remove the file");
    if (!file->has_value() || !IsCoordinatorAlive(**file)) {
      check.detail = "none runs; the next command starts one";
      return {check};
    }
    target = absl::StrCat("unix:", (*file)->socket);
  }
  JobClient client([&] { return target; }, timing);
  const absl::StatusOr<v1::Server> server = client.GetServer();
  if (!server.ok()) {
    return fail(Annotate(server.status(), target),
                named.empty() ? "run `ebb stop`, then the command again"
                              : "start it, or correct the address");
  }
  check.detail = absl::StrCat("version ", server->version(), ", process ",
                              server->pid(), ", ", target);
  if (server->version() != kVersion) {
    check.result = Check::kWarn;
    absl::StrAppend(&check.detail, "; this is ebb ", kVersion);
    check.fix = "run `ebb stop`, then the command again";
  }
  return {check, MetricsCheck(server->metrics_address())};
}

Check CheckProgram(const Environment& environment, const std::string& program) {
  Check check{.name = program};
  check.detail = absl::StrCat(environment.program_directory, "/", program);
  if (access(check.detail.c_str(), X_OK) != 0) {
    check.result = Check::kFail;
    absl::StrAppend(&check.detail, " is not there or cannot be run");
    check.fix = "build or install all programs into one directory";
  }
  return check;
}

Check CheckDevice(const Environment& environment) {
  Check check{.name = "device"};
  const auto fail = [&](absl::string_view detail) {
    check.result = Check::kFail;
    check.detail = std::string(detail);
    check.fix = "run `ebb-worker --describe` to see why";
    return check;
  };
  const absl::StatusOr<std::string> output = ReadProgramOutput(
      absl::StrCat(environment.program_directory, "/ebb-worker"),
      {"--describe"}, kDescribeDeadline);
  if (!output.ok()) return fail(output.status().message());
  nlohmann::json json =
      nlohmann::json::parse(*output, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("backend")) json = json["backend"];
  if (!json.is_object() || !json.contains("kind") ||
      !json["kind"].is_string()) {
    return fail("ebb-worker --describe prints no backend");
  }
  check.detail = json["kind"].get<std::string>();
  for (const char* name : {"device_model", "instruction_set"}) {
    if (!json.contains(name) || !json[name].is_string()) continue;
    const std::string value = json[name].get<std::string>();
    if (!value.empty()) absl::StrAppend(&check.detail, ", ", value);
  }
  if (json.contains("bf16_products") && json["bf16_products"].is_boolean()) {
    absl::StrAppend(&check.detail,
                    json["bf16_products"].get<bool>()
                        ? ", multiplies bf16 as it is"
                        : ", multiplies bf16 as fp32 (no instructions for it)");
  }
  return check;
}

Check CheckMemory(int64_t available_bytes) {
  Check check{.name = "memory"};
  check.detail = absl::StrCat(FormatBytes(available_bytes), " available");
  if (available_bytes < kLowMemoryBytes) {
    check.result = Check::kWarn;
    check.fix = "end other programs, or plan jobs for less (memory.budget)";
  }
  return check;
}

int64_t AvailableMemoryBytes() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  std::string line;
  while (std::getline(meminfo, line)) {
    const std::vector<std::string> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kib = 0;
    if (words.size() >= 2 && words[0] == "MemAvailable:" &&
        absl::SimpleAtoi(words[1], &kib)) {
      available = kib * 1024;
    }
  }
  // Version 2 of control groups: the line "0::/path".
  std::ifstream groups("/proc/self/cgroup");
  while (std::getline(groups, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    const std::string group = absl::StrCat("/sys/fs/cgroup", line.substr(3));
    const auto most = ReadNumber(absl::StrCat(group, "/memory.max"));
    const auto used = ReadNumber(absl::StrCat(group, "/memory.current"));
    if (most.has_value() && used.has_value()) {
      available = std::min(available, std::max<int64_t>(0, *most - *used));
    }
  }
  return available;
}

Check CheckDisk(const Environment& environment) {
  Check check{.name = "disk"};
  const absl::StatusOr<std::string> directory = StateDirectory(environment);
  if (!directory.ok()) {
    check.result = Check::kFail;
    check.detail = std::string(directory.status().message());
    check.fix = "set EBB_STATE";
    return check;
  }
  const std::string existing = ExistingDirectory(*directory);
  struct statvfs space {};
  if (statvfs(existing.c_str(), &space) != 0) {
    check.result = Check::kWarn;
    check.detail = absl::StrCat("unknown free space of ", existing);
    check.fix = "set EBB_STATE to another directory";
    return check;
  }
  const int64_t free_bytes = static_cast<int64_t>(space.f_bavail) *
                             static_cast<int64_t>(space.f_frsize);
  check.detail = absl::StrCat(FormatBytes(free_bytes), " free at ", existing);
  if (free_bytes < kLowDiskBytes) {
    check.result = free_bytes < kNoDiskBytes ? Check::kFail : Check::kWarn;
    check.fix = "free some space, or set EBB_STATE to another disk";
  }
  return check;
}

}  // namespace ebb
