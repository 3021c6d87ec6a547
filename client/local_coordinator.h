// The coordinator of this machine and user: found through its state directory,
// started if none runs, stopped by a signal. Files there:
//   ebbd.json      {"pid", "version", "socket", "metrics_address"}, written by
//   a
//                  coordinator that serves; may be left over from a dead one
//   lock           locked by the coordinator while it lives
//   log/ebbd.log   what it says
// Two clients that start one at the same time end with one: the coordinator
// that does not get the lock exits, and both clients meet the other.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/environment.h"

namespace ebb {

// Longest path of a Unix socket (sockaddr_un less the final zero).
inline constexpr size_t kMaxSocketPath = 107;

// What ebbd.json says.
struct CoordinatorFile {
  int64_t pid = 0;
  std::string version;
  std::string socket;
  // Empty: off.
  std::string metrics_address;
};

// $EBB_STATE, else $XDG_STATE_HOME/ebb, else $HOME/.local/state/ebb. Absolute.
// Errors: FAILED_PRECONDITION if none of them is set, or if the path is too
// long for a socket in it.
absl::StatusOr<std::string> StateDirectory(const Environment& environment);

// Makes the directory, for this user alone, if it is not there.
// Errors: FAILED_PRECONDITION if it is another user's, or open to others.
absl::Status PrepareStateDirectory(const std::string& directory);

// Nothing if there is no file.
// Errors: DATA_LOSS if it cannot be understood.
absl::StatusOr<std::optional<CoordinatorFile>> ReadCoordinatorFile(
    const std::string& state_directory);

// The process that the file names lives and is a coordinator (pids are used
// again: its program must be called ebbd).
bool IsCoordinatorAlive(const CoordinatorFile& file);

// Waiting for a coordinator that is starting.
struct StartOptions {
  absl::Duration deadline = absl::Seconds(10);
  absl::Duration poll = absl::Milliseconds(20);
};

// Asks the coordinator at a socket whether it serves; its process id.
using CoordinatorProbe =
    std::function<absl::StatusOr<int64_t>(const std::string& socket)>;

// Makes sure that a coordinator serves. Says on err when it starts one.
// Errors: UNAVAILABLE with the last lines of its log if it does not serve by
// the deadline.
absl::StatusOr<CoordinatorFile> EnsureCoordinator(
    const Environment& environment, const std::string& state_directory,
    const CoordinatorProbe& probe, const StartOptions& options = {});

// Sends SIGTERM to the coordinator and waits until it is gone. False: none ran.
// Errors: DEADLINE_EXCEEDED if it does not end in time.
absl::StatusOr<bool> StopCoordinator(const std::string& state_directory,
                                     absl::Duration deadline);

}  // namespace ebb
