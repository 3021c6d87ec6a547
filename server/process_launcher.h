// Runs attempts on this machine: one `ebb-worker --supervise` each, which this
// process starts and finds again by the files that it writes
// (worker/supervisor/README.md).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/launcher.h"

namespace ebb {

struct ProcessLauncherOptions {
  // Path of ebb-worker.
  std::string worker_program;
  // Passed on to ranks: EBB_STATE and EBB_SERVER.
  std::string state_directory;
  std::string server_address;  // unix:PATH
};

// Owned by main, called by the coordinator alone, under its lock.
class ProcessLauncher final : public Launcher {
 public:
  explicit ProcessLauncher(ProcessLauncherOptions options);

  const char* name() const override { return "process"; }
  absl::Status Launch(const AttemptKey& key) override;
  AttemptObservation Observe(const AttemptKey& key) override;
  bool Adopt(const AttemptKey& key) override;
  absl::Status Stop(const AttemptKey& key, StopSignal signal) override;
  void Forget(const AttemptKey& key) override;

 private:
  // A supervisor that this process started.
  struct Child {
    int pid = 0;
    bool ended = false;
    int wait_status = 0;
  };

  void Reap(Child& child);

  const ProcessLauncherOptions options_;
  std::map<std::string, Child> children_;  // by attempt directory
  std::vector<Child> forgotten_;           // not reaped yet
};

}  // namespace ebb
