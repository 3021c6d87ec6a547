// Runs the ranks of one attempt on one host to their end and leaves on disk how
// each ended. README.md has the files, the signals and the environment.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ebb {

struct SupervisorOptions {
  std::string directory;  // of the attempt; absolute, exists
  int num_ranks = 1;
  // Program (a path) and arguments of a rank.
  std::vector<std::string> command;
  // From SIGTERM to SIGKILL.
  absl::Duration grace = absl::Seconds(10);
  // How often it looks whether the directory is still there. Where it was
  // removed nobody can find or stop the ranks, so they are ended.
  absl::Duration directory_period = absl::Seconds(5);
};

// Starts the ranks and returns when all have ended and the files are written.
// Needs the process for itself: one thread, signals of any disposition (it
// blocks and takes those that it understands).
// Errors: UNAVAILABLE if a rank failed by itself (names the first);
// FAILED_PRECONDITION if the directory is or was in use, and nothing was
// started; INTERNAL if a rank could not be started or a file not written.
absl::Status Supervise(const SupervisorOptions& options);

}  // namespace ebb
