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

namespace {

// A command line names one of a spec, a graph and a schedule (with its graph,
// if need be), and only options that go with it.
absl::Status CheckSubject(const PlanOptions& options) {
  const GraphOptions& graph = options.graph;
  if (graph.graph.empty() && graph.check.empty()) {
    if (options.spec.empty()) {
      return absl::InvalidArgumentError(
          "plan what? Name a SPEC, a graph by --graph FILE or a schedule by "
          "--check FILE; see `ebb help plan`");
    }
    if (!graph.budget.empty()) {
      return absl::InvalidArgumentError(
          "--budget is of a graph: for a spec write --set memory.budget=SIZE");
    }
    if (!graph.time_limit.empty()) {
      return absl::InvalidArgumentError("--time-limit needs --graph");
    }
    return absl::OkStatus();
  }
  if (!options.spec.empty() || !options.sets.empty() || options.dump ||
      options.profile) {
    return absl::InvalidArgumentError(
        "--graph and --check are of graphs: leave out SPEC, --set, --dump and "
        "--profile");
  }
  if (!graph.check.empty() && !graph.time_limit.empty()) {
    return absl::InvalidArgumentError(
        "--check searches nothing: leave out "
        "--time-limit");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> RunPlan(const CommandContext& context,
                            const PlanOptions& options) {
  EBB_RETURN_IF_ERROR(CheckSubject(options));
  if (!options.graph.check.empty()) {
    return RunCheckSchedule(context, options.graph);
  }
  if (!options.graph.graph.empty()) return RunPlanGraph(context, options.graph);
  Environment& environment = context.environment;
  EBB_ASSIGN_OR_RETURN(const SpecReading reading,
                       LoadSpec(environment, options.spec, options.sets));
  EBB_RETURN_IF_ERROR(reading.status);
  v1::PlanJobRequest request;
  *request.mutable_spec() = reading.spec;
  request.set_dump(options.dump);
  request.set_rank(options.rank);
  request.set_profile(options.profile);
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
