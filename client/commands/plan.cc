// `ebb plan`: what would happen.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/commands/accounting_text.h"
#include "client/commands/commands.h"
#include "client/commands/plan_text.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "client/spec_file.h"
#include "client/timeline.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/violations.h"

namespace ebb {

namespace {

// A command line names one of a spec, a graph and a schedule (with its graph,
// if need be), and only options that go with it.
absl::Status CheckSubject(const PlanOptions& options, OutputFormat output) {
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
    if (!options.accounting.empty() && options.accounting != "paper") {
      return absl::InvalidArgumentError(absl::StrCat(
          "--accounting: got ", OneLine(options.accounting),
          ": must be paper; leave it out for what Ebb stores alone"));
    }
    if (options.svg == "-" && (output != OutputFormat::kTable || options.dump ||
                               !options.accounting.empty())) {
      return absl::InvalidArgumentError(
          "--svg -: the picture takes standard output: leave out --output, "
          "--dump and --accounting, or name a file");
    }
    return absl::OkStatus();
  }
  if (!options.spec.empty() || !options.sets.empty() || options.dump ||
      options.profile || !options.accounting.empty() || !options.svg.empty()) {
    return absl::InvalidArgumentError(
        "--graph and --check are of graphs: leave out SPEC, --set, --dump, "
        "--profile, --accounting and --svg");
  }
  if (!graph.check.empty() && !graph.time_limit.empty()) {
    return absl::InvalidArgumentError(
        "--check searches nothing: leave out "
        "--time-limit");
  }
  return absl::OkStatus();
}

// Leaves no part of a picture. Errors: FAILED_PRECONDITION.
absl::Status WritePicture(const std::string& path, const std::string& picture) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  const bool was_opened = file.is_open();
  file << picture;
  file.close();
  if (!file.fail()) return absl::OkStatus();
  const std::string reason =
      errno == 0 ? "" : absl::StrCat(": ", std::strerror(errno));
  std::error_code ignored;  // what was written is what matters
  if (was_opened && std::filesystem::is_regular_file(path, ignored)) {
    std::filesystem::remove(std::filesystem::canonical(path, ignored), ignored);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("--svg: cannot write ", OneLine(path, 4096), reason,
                   "; name a file that you may write, where there is room"));
}

std::string TextOf(const v1::PlanJobResponse& response, int columns) {
  std::string text =
      PlanText(response.plan(), response.effective_spec().name());
  if (response.has_timeline()) {
    const int microbatches = response.timeline().num_microbatches();
    absl::StrAppend(
        &text, "\nmemory over the instructions of a step",
        microbatches > 1 ? absl::StrCat(", one of ", microbatches,
                                        " equal microbatches spelled out")
                         : "",
        " (^: computes again):\n", TimelineText(response.timeline(), columns));
  }
  if (response.has_paper_accounting()) {
    absl::StrAppend(&text, "\n", AccountingText(response.paper_accounting()));
  }
  return text;
}

}  // namespace

absl::StatusOr<int> RunPlan(const CommandContext& context,
                            const PlanOptions& options) {
  EBB_RETURN_IF_ERROR(CheckSubject(options, context.output));
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
  request.set_accounting(options.accounting);
  const bool is_text = context.output == OutputFormat::kTable && !options.dump;
  if (is_text || !options.svg.empty()) {
    request.set_timeline_points(kTimelinePoints);
  }
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  const absl::StatusOr<v1::PlanJobResponse> response = client->PlanJob(request);
  if (!response.ok()) return reading.Join(response.status());
  const v1::Plan& plan = response->plan();
  if (!options.svg.empty()) {
    const std::string picture = TimelineSvg(response->timeline(), plan,
                                            response->effective_spec().name());
    if (options.svg == "-") {
      *environment.out << picture;
    } else {
      EBB_RETURN_IF_ERROR(
          WritePicture(environment.AbsolutePath(options.svg), picture));
    }
  }
  if (options.svg == "-") {
    // The picture stands for the plan.
  } else if (context.output != OutputFormat::kTable) {
    nlohmann::ordered_json json = ToJson(plan);
    if (options.dump) json["dump"] = response->dump();
    if (response->has_timeline()) {
      json["timeline"] = ToJson(response->timeline());
    }
    if (response->has_paper_accounting()) {
      json["paper_accounting"] = ToJson(response->paper_accounting());
    }
    *environment.out << WriteJson(json, context.output);
  } else if (options.dump) {
    *environment.out << response->dump();
  } else {
    *environment.out << TextOf(*response, std::min(80, environment.columns()));
  }
  if (plan.fits()) return kExitOk;
  *environment.out << std::flush;
  PrintError(absl::ResourceExhaustedError(absl::StrCat(
                 "does not fit: ", OneLine(plan.shortfall(), 2000))),
             context.output, *environment.err);
  return kExitDoesNotFit;
}

}  // namespace ebb
