// Waiting for a job's end, silently or with the live display. Ctrl-C detaches.
#pragma once

#include "absl/status/statusor.h"
#include "client/commands/commands.h"
#include "client/job_client.h"

namespace ebb {

namespace v1 {
class Job;
}

enum class FollowDisplay {
  kNone,
  // Progress bar, events and the end on err.
  kProgress,
  // Every event as a JSON object a line on out.
  kEvents,
};

// Follows `job` to its end. The exit code is the job's, or kExitDetached after
// Ctrl-C (said on err). With json output the final job is on out at the end.
absl::StatusOr<int> FollowToEnd(const CommandContext& context,
                                JobClient& client, const v1::Job& job,
                                FollowDisplay display);

// Says on err that the user detached; the exit code of that.
int Detached(const CommandContext& context, const std::string& job);

}  // namespace ebb
