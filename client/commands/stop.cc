// `ebb stop`: ends the local coordinator; jobs train on, unless they are
// cancelled first.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/local_coordinator.h"
#include "client/output.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"

namespace ebb {
namespace {

// A coordinator drains its calls and writes its last records.
constexpr absl::Duration kStopDeadline = absl::Seconds(30);

// Cancels all jobs that have not ended and waits for their end. Returns their
// ids.
absl::StatusOr<std::vector<std::string>> CancelJobs(
    const CommandContext& context, JobClient& client) {
  std::vector<std::string> ids;
  v1::ListJobsRequest request;
  request.set_page_size(1000);
  for (const v1::State state : {v1::STATE_QUEUED, v1::STATE_STARTING,
                                v1::STATE_RUNNING, v1::STATE_CANCELLING}) {
    request.add_states(state);
  }
  do {
    EBB_ASSIGN_OR_RETURN(const v1::ListJobsResponse response,
                         client.ListJobs(request));
    for (const v1::Job& job : response.jobs()) ids.push_back(job.id());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  for (const std::string& id : ids) {
    const absl::Status status = client.CancelJob(id, /*now=*/false).status();
    // It may have ended by itself meanwhile.
    if (!status.ok() && !absl::IsFailedPrecondition(status)) {
      return Annotate(status, absl::StrCat("job ", id));
    }
  }
  for (const std::string& id : ids) {
    *context.environment.err << "waiting for the end of " << id << "\n"
                             << std::flush;
    const absl::Status status =
        client.FollowJob(id, 0, [](const v1::JobEvent&) {}).status();
    EBB_RETURN_IF_ERROR(Annotate(status, absl::StrCat("job ", id)));
  }
  return ids;
}

}  // namespace

absl::StatusOr<int> RunStop(const CommandContext& context, bool cancel) {
  Environment& environment = context.environment;
  const std::string named = NamedServer(environment, context.server);
  if (!named.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "stop ends the local coordinator only: leave --server and EBB_SERVER "
        "away and name its state directory in EBB_STATE: got ",
        named));
  }
  EBB_ASSIGN_OR_RETURN(const std::string state_directory,
                       StateDirectory(environment));
  std::vector<std::string> cancelled;
  // Jobs of a coordinator that is gone may still train: where one has run, one
  // is started to find them.
  std::error_code ignored;
  if (cancel && std::filesystem::exists(state_directory + "/lock", ignored)) {
    EBB_ASSIGN_OR_RETURN(
        const std::unique_ptr<JobClient> client,
        ConnectToCoordinator(environment, context.server, context.timing));
    EBB_ASSIGN_OR_RETURN(cancelled, CancelJobs(context, *client));
  }
  EBB_ASSIGN_OR_RETURN(const bool stopped,
                       StopCoordinator(state_directory, kStopDeadline));
  if (context.output == OutputFormat::kTable) {
    *environment.err << (stopped ? "stopped the coordinator"
                                 : "no coordinator runs")
                     << " (state in " << state_directory << ")\n";
  } else {
    const nlohmann::ordered_json json = {{"stopped", stopped},
                                         {"cancelled", cancelled}};
    *environment.out << WriteJson(json, context.output);
  }
  return kExitOk;
}

}  // namespace ebb
