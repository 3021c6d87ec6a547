// Job tools: what a worker process does with a job's checkpoint for one call
// (`ebb-worker --sample ...` makes text of it). The coordinator computes
// nothing itself; it starts the tool as its child, hands on what it prints, and
// ends it with the call.
//
// Between the two:
//   arguments        flags of ebb-worker
//   standard input   what has no place in a list of processes (a prompt)
//   standard output  the answer; what it means is the tool's business
//   exit code        0: done. 64 + a status code: that error, its message on
//                    standard error behind "ebb-worker: " (ToolExitCode and
//                    Complain in worker/main.cc). All else: INTERNAL
//   SIGTERM          the call is given up; kill follows after 2 s
// A tool ends with the coordinator, however that ends (PR_SET_PDEATHSIG).
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ebb {

struct ToolCall {
  std::vector<std::string> arguments;
  std::string input;
  // Takes a piece of standard output, at most 64 KiB, as it comes; the tool
  // waits meanwhile. False: nobody listens, end the tool.
  std::function<bool(absl::string_view)> on_output;
  // Asked several times a second; true ends the tool.
  std::function<bool()> is_cancelled;
};

// Thread-safe.
class JobTools {
 public:
  // `worker_program`: path of ebb-worker. Each tool takes the memory of a model
  // and the threads of a step: at most max_running at once.
  JobTools(std::string worker_program, int max_running);

  // Runs a tool to its end on the calling thread.
  // Errors: RESOURCE_EXHAUSTED if too many run; CANCELLED if the call was given
  // up; FAILED_PRECONDITION if ebb-worker cannot be started; the tool's own;
  // INTERNAL with exit code or signal and the last of what it said.
  absl::Status Run(const ToolCall& call);

 private:
  const std::string worker_program_;
  const int max_running_;
  std::atomic<int> running_ = 0;
};

}  // namespace ebb
