// `ebb plan`: what would happen.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/plan_text.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "client/spec_file.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/violations.h"

namespace ebb {

absl::StatusOr<int> RunPlan(const CommandContext& context,
                            const PlanOptions& options) {
  Environment& environment = context.environment;
  EBB_ASSIGN_OR_RETURN(const SpecReading reading,
                       LoadSpec(environment, options.spec, options.sets));
  EBB_RETURN_IF_ERROR(reading.status);
  v1::PlanJobRequest request;
  *request.mutable_spec() = reading.spec;
  request.set_dump(options.dump);
  request.set_rank(options.rank);
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  const absl::StatusOr<v1::PlanJobResponse> response = client->PlanJob(request);
  if (!response.ok()) return reading.Join(response.status());
  const v1::Plan& plan = response->plan();
  if (context.output != OutputFormat::kTable) {
    nlohmann::ordered_json json = ToJson(plan);
    if (options.dump) json["dump"] = response->dump();
    *environment.out << WriteJson(json, context.output);
  } else if (options.dump) {
    *environment.out << response->dump();
  } else {
    *environment.out << PlanText(plan, response->effective_spec().name());
  }
  if (plan.fits()) return kExitOk;
  *environment.out << std::flush;
  PrintError(absl::ResourceExhaustedError(absl::StrCat(
                 "does not fit: ", OneLine(plan.shortfall(), 2000))),
             context.output, *environment.err);
  return kExitDoesNotFit;
}

}  // namespace ebb
