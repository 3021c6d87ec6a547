// Starts attempts and finds out how they are doing. One implementation a place
// where jobs run; the coordinator knows only this.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/supervision.h"

namespace ebb {

// Names one attempt of a job.
struct AttemptKey {
  std::string job_id;
  int attempt = 0;
  // Absolute, of this attempt alone; exists before Launch.
  std::string directory;
  int num_ranks = 1;
};

struct AttemptObservation {
  SupervisorState supervisor = SupervisorState::kAwaited;
  std::string supervisor_error;
  int failed_rank = -1;
  std::vector<std::optional<RankExit>> exits;  // by rank
};

enum class StopSignal : uint8_t { kTerminate, kKill };

// Called by the coordinator under its lock: every method returns at once.
class Launcher {
 public:
  virtual ~Launcher() = default;

  // The label value of metrics: "process".
  virtual const char* name() const = 0;

  // Starts the supervisor of an attempt that is stored. It outlives this
  // process.
  // Errors: INTERNAL with the system's reason; nothing runs then.
  virtual absl::Status Launch(const AttemptKey& key) = 0;

  // Looks at an attempt that this process launched or Adopt has taken over.
  virtual AttemptObservation Observe(const AttemptKey& key) = 0;

  // Takes over an attempt that an earlier coordinator stored. False if its
  // supervisor never lived; then it never will, and the job may be launched
  // again without ever running twice.
  virtual bool Adopt(const AttemptKey& key) = 0;

  // Errors: NOT_FOUND if there is no live supervisor to signal.
  virtual absl::Status Stop(const AttemptKey& key, StopSignal signal) = 0;

  // Forgets an attempt whose end has been judged.
  virtual void Forget(const AttemptKey& key) = 0;
};

}  // namespace ebb
