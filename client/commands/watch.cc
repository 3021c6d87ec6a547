// `ebb watch`: a job to its end, live.
#include "client/commands/commands.h"
#include "client/commands/follow.h"
#include "client/commands/job_lookup.h"
#include "client/connection.h"
#include "kernels/status.h"
#include "proto/job_service.pb.h"

namespace ebb {

absl::StatusOr<int> RunWatch(const CommandContext& context,
                             const std::string& job_id) {
  EBB_ASSIGN_OR_RETURN(const std::unique_ptr<JobClient> client,
                       ConnectToCoordinator(context.environment, context.server,
                                            context.timing));
  const absl::StatusOr<v1::Job> job = client->GetJob(job_id);
  if (!job.ok()) return SuggestJob(job.status(), job_id, *client);
  const FollowDisplay display =
      context.output == OutputFormat::kTable   ? FollowDisplay::kProgress
      : context.output == OutputFormat::kJsonl ? FollowDisplay::kEvents
                                               : FollowDisplay::kNone;
  return FollowToEnd(context, *client, *job, display);
}

}  // namespace ebb
