// One rank of an attempt, from its environment to its exit code.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"

namespace ebb {

// What the supervisor puts into the environment.
struct RankEnvironment {
  std::string job;                // EBB_JOB
  int attempt = 0;                // EBB_ATTEMPT
  int rank = 0;                   // EBB_RANK
  std::string server;             // EBB_SERVER: unix:PATH
  std::string attempt_directory;  // EBB_ATTEMPT_DIRECTORY
  bool poison = false;            // EBB_POISON=1
  bool check_offload = false;     // EBB_OFFLOAD_CHECK=1

  // Errors: INVALID_ARGUMENT that names the variable and what it must be.
  static absl::StatusOr<RankEnvironment> Read();

  // Where values wait on disk if memory.offload_dir is `named`.
  std::string OffloadDirectory(const std::string& named) const;
};

// Connects, takes the assignment, trains, reports. Uses the whole process:
// SIGTERM and SIGINT end training at the next step boundary, the thread team
// is that of the calling thread. Returns the exit code: 0 if the job is done or
// was cancelled, 1 otherwise (the reason is in the log and, where there is a
// coordinator that wants it, in `finished`).
int RunRank(const RankEnvironment& environment, const std::string& version);

// Where this machine differs from the one that a plan is for, in what decides
// bits: "threads is 2, the plan is for 4; ..."; empty: nowhere. Bytes outside
// the arenas are a prediction and may differ.
std::string BackendDifference(const Backend& planned, const Backend& found);

}  // namespace ebb
