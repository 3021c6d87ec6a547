// `ebb compare`: jobs side by side.
#include "client/commands/commands.h"
#include "client/commands/compare_text.h"
#include "client/commands/job_lookup.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"

namespace ebb {

absl::StatusOr<int> RunCompare(const CommandContext& context,
                               const std::vector<std::string>& jobs) {
  Environment& environment = context.environment;
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  std::vector<ComparedJob> compared;
  for (const std::string& id : jobs) {
    ComparedJob& job = compared.emplace_back();
    // Steps first: of a job that trains on, the job is the newer of the two.
    EBB_RETURN_IF_ERROR(SuggestJob(
        client->ListSteps(
            id, 0, [&](const v1::Step& step) { job.steps.push_back(step); }),
        id, *client));
    absl::StatusOr<v1::Job> found = client->GetJob(id);
    if (!found.ok()) return SuggestJob(found.status(), id, *client);
    job.job = *std::move(found);
  }
  if (context.output == OutputFormat::kTable) {
    *environment.out << CompareTable(compared);
    return kExitOk;
  }
  const nlohmann::ordered_json json = CompareJson(compared);
  if (context.output == OutputFormat::kJson) {
    *environment.out << WriteJson(json, context.output);
    return kExitOk;
  }
  for (const auto& job : json["jobs"]) {
    *environment.out << WriteJson(job, context.output);
  }
  return kExitOk;
}

}  // namespace ebb
