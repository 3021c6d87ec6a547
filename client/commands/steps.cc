// `ebb steps`: what every step did.
#include "client/commands/commands.h"
#include "client/commands/follow.h"
#include "client/commands/job_lookup.h"
#include "client/commands/job_text.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/interrupt.h"
#include "client/json_list.h"
#include "client/output.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"

namespace ebb {

absl::StatusOr<int> RunSteps(const CommandContext& context,
                             const StepsOptions& options) {
  Environment& environment = context.environment;
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  const Table table = StepTable();
  JsonList list("steps", context.output, *environment.out);
  bool first = true;
  const auto print = [&](const v1::Step& step) {
    if (context.output != OutputFormat::kTable) {
      list.Add(ToJson(step));
      return;
    }
    if (first) *environment.out << table.RenderHeader();
    first = false;
    *environment.out << table.RenderRow(StepRow(step)) << std::flush;
  };
  if (!options.follow) {
    EBB_RETURN_IF_ERROR(SuggestJob(client->ListSteps(options.job, 0, print),
                                   options.job, *client));
    list.End();
    return kExitOk;
  }
  InterruptScope interrupt([&] { client->Cancel(); });
  client->set_on_notice([&](absl::string_view text) {
    *environment.err << text << "\n" << std::flush;
  });
  const absl::StatusOr<v1::Job> end =
      client->FollowSteps(options.job, 0, print);
  if (!end.ok()) {
    if (interrupt.interrupted()) {
      list.End();
      return Detached(context, options.job);
    }
    return SuggestJob(end.status(), options.job, *client);
  }
  list.End();
  if (context.output == OutputFormat::kTable) {
    *environment.err << EndText(*end) << "\n";
  }
  return JobExitCode(*end);
}

}  // namespace ebb
