// What `ebb doctor` looks at, one function a check. They change nothing and
// start no coordinator.
#pragma once

#include <string>
#include <vector>

#include "client/environment.h"
#include "client/job_client.h"

namespace ebb {

struct Check {
  enum Result { kOk, kWarn, kFail };
  std::string name = "";
  Result result = kOk;
  // What was found.
  std::string detail = "";
  // What to do; empty if all is well.
  std::string fix = "";
};

Check CheckStateDirectory(const Environment& environment);
Check CheckSocketPath(const Environment& environment);
// Reachable, and of which version; then its metrics address.
std::vector<Check> CheckCoordinator(const Environment& environment,
                                    const std::string& server_option,
                                    const CallTiming& timing);
// ebbd and ebb-worker stand beside ebb.
Check CheckProgram(const Environment& environment, const std::string& program);
// What the worker says of this machine's device.
Check CheckDevice(const Environment& environment);
// Bytes that a job may use: available memory, less where a cgroup allows less.
Check CheckMemory(int64_t available_bytes);
int64_t AvailableMemoryBytes();
Check CheckDisk(const Environment& environment);

// "ok", "warn", "fail".
std::string ResultWord(Check::Result result);

}  // namespace ebb
