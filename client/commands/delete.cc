// `ebb delete`: removes a job that has ended, and its directory.
#include "client/commands/commands.h"
#include "client/commands/job_lookup.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"

namespace ebb {

absl::StatusOr<int> RunDelete(const CommandContext& context,
                              const std::string& job_id) {
  Environment& environment = context.environment;
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  EBB_RETURN_IF_ERROR(SuggestJob(client->DeleteJob(job_id), job_id, *client));
  if (context.output == OutputFormat::kTable) {
    *environment.out << job_id << " deleted\n";
  } else {
    const nlohmann::ordered_json json = {{"id", job_id}, {"deleted", true}};
    *environment.out << WriteJson(json, context.output);
  }
  return kExitOk;
}

}  // namespace ebb
