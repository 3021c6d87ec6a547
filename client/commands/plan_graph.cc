// `ebb plan --graph` and `ebb plan --check`: schedules of any computation
// graph.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/graph_text.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/input_file.h"
#include "client/output.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/scalar_text.h"
#include "proto/violations.h"

namespace ebb {
namespace {

// The coordinator takes no more: one byte above, so that it says so.
constexpr size_t kMostGraphBytes = (4 << 20) + 1;
constexpr size_t kMostScheduleBytes = (7 << 20) + 1;
// For what is around the search: the answer of a large graph, a busy machine.
constexpr absl::Duration kAnswerTime = absl::Seconds(60);
constexpr absl::Duration kDefaultSearchTime = absl::Seconds(60);

// Mistakes in the graph's own file, for a schedule that stands in another.
absl::Status NameFiles(const absl::Status& status,
                       const std::string& schedule_file,
                       const std::string& graph_file) {
  std::vector<v1::Violation> violations = GetViolations(status);
  if (violations.empty()) return status;
  for (v1::Violation& violation : violations) {
    const bool in_graph =
        !graph_file.empty() && absl::StartsWith(violation.field(), "graph");
    violation.set_file(in_graph ? graph_file : schedule_file);
  }
  return ViolationsStatus(status.code(), violations);
}

absl::StatusOr<int64_t> ReadBudget(const std::string& text) {
  const Scalar<int64_t> bytes = ParseByteSize(text);
  if (bytes.ok() && bytes.value > 0) return bytes.value;
  return absl::InvalidArgumentError(
      absl::StrCat("--budget: got ", OneLine(text),
                   ": must be a size above 0; write it as in 4096 or 1.5GiB"));
}

// Reading standard input twice would find it empty the second time.
absl::Status CheckOneStandardInput(const GraphOptions& options) {
  if (options.graph != "-" || options.check != "-") return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--graph - and --check -: standard input holds one of them; write the "
      "other to a file");
}

}  // namespace

absl::StatusOr<int> RunPlanGraph(const CommandContext& context,
                                 const GraphOptions& options) {
  Environment& environment = context.environment;
  v1::PlanGraphRequest request;
  if (options.budget.empty()) {
    return absl::InvalidArgumentError(
        "--graph needs --budget: how many bytes may be resident at a time");
  }
  EBB_ASSIGN_OR_RETURN(const int64_t budget, ReadBudget(options.budget));
  request.set_budget_bytes(budget);
  absl::Duration search_time = kDefaultSearchTime;
  if (!options.time_limit.empty()) {
    const Scalar<google::protobuf::Duration> limit =
        ParseDuration(options.time_limit);
    if (!limit.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--time-limit: got ", OneLine(options.time_limit), ": ",
                       limit.rule, "; ", limit.fix));
    }
    *request.mutable_time_limit() = limit.value;
    search_time = absl::Seconds(limit.value.seconds()) +
                  absl::Nanoseconds(limit.value.nanos());
  }
  EBB_ASSIGN_OR_RETURN(
      *request.mutable_graph(),
      ReadInputFile(environment, options.graph, "graph", kMostGraphBytes));
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  const std::string file = InputFileName(options.graph);
  const absl::StatusOr<v1::PlanGraphResponse> response =
      client->PlanGraph(request, search_time + kAnswerTime);
  if (!response.ok()) return NameFiles(response.status(), file, "");
  if (context.output == OutputFormat::kTable) {
    *environment.out << GraphPlanText(*response, file, budget);
    return kExitOk;
  }
  // With graph and budget: --check takes it as it is.
  nlohmann::ordered_json json = ToJson(*response);
  json["budget_bytes"] = absl::StrCat(budget);
  json["graph"] = nlohmann::ordered_json::parse(request.graph(), nullptr,
                                                /*allow_exceptions=*/false);
  *environment.out << WriteJson(json, context.output);
  return kExitOk;
}

absl::StatusOr<int> RunCheckSchedule(const CommandContext& context,
                                     const GraphOptions& options) {
  Environment& environment = context.environment;
  EBB_RETURN_IF_ERROR(CheckOneStandardInput(options));
  v1::CheckScheduleRequest request;
  if (!options.budget.empty()) {
    EBB_ASSIGN_OR_RETURN(const int64_t budget, ReadBudget(options.budget));
    request.set_budget_bytes(budget);
  }
  EBB_ASSIGN_OR_RETURN(*request.mutable_schedule(),
                       ReadInputFile(environment, options.check, "schedule",
                                     kMostScheduleBytes));
  if (!options.graph.empty()) {
    EBB_ASSIGN_OR_RETURN(
        *request.mutable_graph(),
        ReadInputFile(environment, options.graph, "graph", kMostGraphBytes));
    if (request.graph().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the graph is empty: ", options.graph));
    }
  }
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  const std::string file = InputFileName(options.check);
  const absl::StatusOr<v1::CheckScheduleResponse> response =
      client->CheckSchedule(request);
  if (!response.ok()) {
    return NameFiles(response.status(), file,
                     options.graph.empty() ? "" : InputFileName(options.graph));
  }
  if (context.output == OutputFormat::kTable) {
    *environment.out << CheckedScheduleText(*response, file);
  } else {
    *environment.out << WriteJson(ToJson(*response), context.output);
  }
  return kExitOk;
}

}  // namespace ebb
