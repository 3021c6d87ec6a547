// What ops take on this machine, as far as it was measured: the cost profiles
// with which jobs are planned, one for each backend, kept in files.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"
#include "proto/spec.pb.h"
#include "server/job_tool.h"
#include "worker/program/cost_profile.h"

namespace ebb {

// Thread-safe.
class CostProfiles {
 public:
  // `directory`: made when something is first kept. What lies there and cannot
  // be read counts as not measured, with a line in the log.
  explicit CostProfiles(std::string directory);

  // A roofline, with what was measured on a backend like this one (device
  // model, instruction set, threads and libraries; not the bytes). Values on
  // disk wait in `offload_dir`, as memory.offload_dir says it.
  CostProfile ProfileOf(const Backend& backend,
                        const std::string& offload_dir = "");

  // Keeps seconds by OpKey, beside those that are known; newer ones replace
  // older. What is no time (not above 0, not finite) is left out.
  void Keep(const Backend& backend,
            const std::map<std::string, double>& seconds);

 private:
  using Seconds = std::map<std::string, double>;

  std::string PathOf(const Backend& backend) const;
  Seconds& Load(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string directory_;
  absl::Mutex mutex_;
  std::map<std::string, Seconds> by_path_ ABSL_GUARDED_BY(mutex_);
};

// Runs `ebb-worker --profile` for an effective spec; copies to disk are
// measured in its directory or, if it names none, in `offload_directory`.
// `cancelled` is asked several times a second. Errors: those of JobTools::Run;
// INTERNAL for output that is none.
absl::StatusOr<std::map<std::string, double>> ProfileThroughWorker(
    JobTools& tools, const v1::JobSpec& spec,
    const std::string& offload_directory,
    const std::function<bool()>& cancelled);

}  // namespace ebb
