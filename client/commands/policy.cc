// `ebb policy`: a job goes on under another policy or budget.
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/job_lookup.h"
#include "client/commands/job_text.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/interrupt.h"
#include "client/output.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/spec_reader.h"
#include "proto/violations.h"

namespace ebb {
namespace {

// Mistakes in what is no --set on the command line are told as what it is.
absl::Status NameArguments(const absl::Status& status) {
  std::vector<v1::Violation> violations = GetViolations(status);
  if (violations.empty()) return status;
  for (v1::Violation& violation : violations) {
    if (violation.file() == "--set memory.policy") violation.set_file("POLICY");
    if (violation.file() == "--set memory.budget") {
      violation.set_file("--budget");
    }
  }
  return ViolationsStatus(status.code(), violations);
}

// Waits until the fate of the switch is known. Nothing: the user has detached.
absl::StatusOr<std::optional<v1::PolicySwitch>> AwaitFate(
    const CommandContext& context, const std::string& job,
    const v1::SwitchPolicyResponse& response, JobClient& client) {
  std::optional<v1::PolicySwitch> fate;
  client.set_on_notice([&](absl::string_view text) {
    *context.environment.err << text << "\n" << std::flush;
  });
  InterruptScope interrupt([&] { client.Cancel(); });
  const absl::StatusOr<v1::Job> end = client.FollowJob(
      job, response.sequence(), [&](const v1::JobEvent& event) {
        const v1::PolicySwitch& told = event.policy_switch();
        if (told.number() != response.policy_switch().number() ||
            told.state() == v1::PolicySwitch::STATE_PENDING) {
          return;
        }
        fate = told;
        client.Cancel();
      });
  if (fate.has_value() || interrupt.interrupted()) return fate;
  EBB_RETURN_IF_ERROR(end.status());
  return absl::FailedPreconditionError(absl::StrCat(
      "the job ended before the switch came into force: ", StateWord(*end),
      ": job ", job));
}

}  // namespace

absl::StatusOr<int> RunPolicy(const CommandContext& context,
                              const PolicyOptions& options) {
  Environment& environment = context.environment;
  std::vector<std::string> sets = {
      absl::StrCat("memory.policy=", options.policy)};
  if (!options.budget.empty()) {
    sets.push_back(absl::StrCat("memory.budget=", options.budget));
  }
  sets.insert(sets.end(), options.sets.begin(), options.sets.end());
  const SpecReading reading =
      ReadSets("memory", sets, environment.working_directory);
  if (!reading.status.ok()) return NameArguments(reading.status);

  v1::SwitchPolicyRequest request;
  request.set_id(options.job);
  *request.mutable_memory() = reading.spec.memory();
  request.set_at_step(options.at_step);
  request.set_next_run(options.next_run);
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  const absl::StatusOr<v1::SwitchPolicyResponse> response =
      client->SwitchPolicy(request);
  if (!response.ok()) {
    return SuggestJob(NameArguments(reading.Join(response.status())),
                      options.job, *client);
  }
  v1::PolicySwitch result = response->policy_switch();
  if (result.state() == v1::PolicySwitch::STATE_PENDING && !result.next_run()) {
    if (result.at_step() > 0) {
      *environment.err << SwitchText(result) << "; waiting\n" << std::flush;
    }
    EBB_ASSIGN_OR_RETURN(const std::optional<v1::PolicySwitch> fate,
                         AwaitFate(context, options.job, *response, *client));
    if (!fate.has_value()) {
      *environment.err << "detached; the switch stays ordered: `ebb describe "
                       << options.job << "` shows it\n";
      return kExitDetached;
    }
    result = *fate;
  }
  if (result.state() == v1::PolicySwitch::STATE_REFUSED) {
    return absl::Status(static_cast<absl::StatusCode>(result.code()),
                        SwitchText(result));
  }
  if (result.state() == v1::PolicySwitch::STATE_SUPERSEDED) {
    return absl::AbortedError(SwitchText(result));
  }
  if (context.output == OutputFormat::kTable) {
    *environment.out << options.job << ": " << SwitchText(result) << "\n";
    return kExitOk;
  }
  nlohmann::ordered_json json = {{"id", options.job}};
  json.update(ToJson(result));
  *environment.out << WriteJson(json, context.output);
  return kExitOk;
}

}  // namespace ebb
