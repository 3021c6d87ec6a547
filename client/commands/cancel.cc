// `ebb cancel`: asks a job to end.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/job_lookup.h"
#include "client/commands/job_text.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"

namespace ebb {

absl::StatusOr<int> RunCancel(const CommandContext& context,
                              const std::string& job_id, bool now) {
  Environment& environment = context.environment;
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  const absl::StatusOr<v1::Job> job = client->CancelJob(job_id, now);
  if (!job.ok()) return SuggestJob(job.status(), job_id, *client);
  if (context.output == OutputFormat::kTable) {
    *environment.out << job->id() << " " << StateWord(*job) << "\n";
  } else {
    *environment.out << WriteJson(ToJson(*job), context.output);
  }
  return kExitOk;
}

}  // namespace ebb
