// `ebb completion`: scripts for shells, and the answers that they ask for.
#include "client/completion.h"

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/job_text.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/local_coordinator.h"
#include "proto/job_service.pb.h"
#include "proto/violations.h"

namespace ebb {
namespace {

// Somebody has pressed a key and waits.
constexpr absl::Duration kPatience = absl::Milliseconds(500);

// The socket of the coordinator that runs; empty: none does.
std::string RunningTarget(const Environment& environment) {
  const std::string named = NamedServer(environment, "");
  if (!named.empty()) return ServerTarget(environment, named).value_or("");
  const absl::StatusOr<std::string> directory = StateDirectory(environment);
  if (!directory.ok()) return "";
  const auto file = ReadCoordinatorFile(*directory);
  if (!file.ok() || !file->has_value() || !IsCoordinatorAlive(**file)) {
    return "";
  }
  return absl::StrCat("unix:", (*file)->socket);
}

// The newest jobs; none where no coordinator answers at once. Never starts one
// and never complains: the line is only half written.
std::vector<Candidate> ListJobs(const CommandContext& context) {
  const std::string target = RunningTarget(context.environment);
  if (target.empty()) return {};
  CallTiming timing = context.timing;
  timing.call_deadline = kPatience;
  timing.num_attempts = 1;
  JobClient client([&] { return target; }, timing);
  const absl::StatusOr<v1::ListJobsResponse> response =
      client.ListJobs(v1::ListJobsRequest());
  std::vector<Candidate> candidates;
  if (!response.ok()) return candidates;
  for (const v1::Job& job : response->jobs()) {
    candidates.push_back(
        {job.id(), absl::StrCat(StateWord(job), job.name().empty() ? "" : ", ",
                                OneLine(job.name(), 40))});
  }
  return candidates;
}

}  // namespace

absl::StatusOr<int> RunCompletion(const CommandContext& context,
                                  const std::string& shell) {
  const std::string script = CompletionScript(shell);
  if (script.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got ", OneLine(shell), ": must be a shell: use bash, zsh or fish"));
  }
  *context.environment.out << script;
  return kExitOk;
}

int RunCandidates(const CommandContext& context,
                  const ProgramDescription& program,
                  const std::vector<std::string>& words) {
  *context.environment.out << PrintCompletion(
      CompleteLine(program, words, [&] { return ListJobs(context); }));
  return kExitOk;
}

}  // namespace ebb
