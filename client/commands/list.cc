// `ebb list`: jobs, newest first.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/commands.h"
#include "client/commands/job_text.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/violations.h"

namespace ebb {
namespace {

absl::StatusOr<v1::State> ParseState(const std::string& word) {
  const std::vector<std::string> words = StateWords();
  const auto found = std::find(words.begin(), words.end(), word);
  if (found != words.end()) {
    return static_cast<v1::State>(1 + (found - words.begin()));
  }
  return absl::InvalidArgumentError(absl::StrCat("--state: got ", OneLine(word),
                                                 ": must be one of ",
                                                 absl::StrJoin(words, ", ")));
}

}  // namespace

absl::StatusOr<int> RunList(const CommandContext& context,
                            const ListOptions& options) {
  Environment& environment = context.environment;
  v1::ListJobsRequest request;
  for (const std::string& word : options.states) {
    EBB_ASSIGN_OR_RETURN(const v1::State state, ParseState(word));
    request.add_states(state);
  }
  if (options.all) request.set_page_size(1000);
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  // Pages are gathered before anything is printed: an error leaves out empty.
  std::vector<v1::Job> jobs;
  do {
    EBB_ASSIGN_OR_RETURN(const v1::ListJobsResponse response,
                         client->ListJobs(request));
    jobs.insert(jobs.end(), response.jobs().begin(), response.jobs().end());
    request.set_page_token(response.next_page_token());
  } while (options.all && !request.page_token().empty());

  if (context.output == OutputFormat::kJsonl) {
    for (const v1::Job& job : jobs) {
      *environment.out << WriteJson(ToJson(job), context.output);
    }
    return kExitOk;
  }
  if (context.output == OutputFormat::kJson) {
    nlohmann::ordered_json json = {{"jobs", nlohmann::ordered_json::array()},
                                   {"next_page_token", request.page_token()}};
    for (const v1::Job& job : jobs) json["jobs"].push_back(ToJson(job));
    *environment.out << WriteJson(json, context.output);
    return kExitOk;
  }
  Table table = JobTable();
  for (const v1::Job& job : jobs) {
    table.AddRow(JobRow(job, environment.zone));
  }
  *environment.out << (environment.out_is_terminal
                           ? table.RenderWithin(environment.columns())
                           : table.Render());
  if (!request.page_token().empty()) {
    *environment.err << "older jobs are left out: `ebb list --all` shows all\n";
  }
  return kExitOk;
}

}  // namespace ebb
