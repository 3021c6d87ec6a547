// See graph_requests.h.
#include "server/graph_requests.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/status.h"
#include "monitoring/log.h"
#include "proto/violations.h"
#include "server/planner/graph_planner.h"
#include "server/planner/graph_problem.h"
#include "server/planner/schedule_checker.h"

namespace ebb {
namespace {

constexpr size_t kMaxGraphBytes = 4 << 20;
constexpr size_t kMaxScheduleBytes = 7 << 20;
constexpr absl::Duration kDefaultTimeLimit = absl::Seconds(60);
constexpr absl::Duration kLongestTimeLimit = absl::Hours(1);
// Of what a schedule file states, relative: sums in another order differ so.
constexpr double kSumTolerance = 1e-9;

using Violations = std::vector<v1::Violation>;

void Add(const std::string& field, const std::string& value,
         const std::string& rule, const std::string& fix,
         Violations* violations) {
  v1::Violation& violation = violations->emplace_back();
  violation.set_field(field);
  violation.set_value(value);
  violation.set_rule(rule);
  violation.set_fix(fix);
}

void AddMistakes(const std::vector<TextMistake>& mistakes,
                 Violations* violations) {
  for (const TextMistake& mistake : mistakes) {
    Add(mistake.field, mistake.value, mistake.rule, mistake.fix, violations);
    violations->back().set_line(mistake.line);
    violations->back().set_column(mistake.column);
  }
}

void CheckSize(const std::string& field, size_t bytes, size_t most,
               Violations* violations) {
  if (bytes <= most) return;
  Add(field, absl::StrCat(bytes, " bytes"),
      absl::StrCat("must have at most ", most, " bytes"), "take a smaller one",
      violations);
}

absl::Duration TimeLimit(const v1::PlanGraphRequest& request,
                         Violations* violations) {
  if (!request.has_time_limit()) return kDefaultTimeLimit;
  const auto& given = request.time_limit();
  const absl::Duration limit =
      absl::Seconds(given.seconds()) + absl::Nanoseconds(given.nanos());
  if (limit <= absl::ZeroDuration() || limit > kLongestTimeLimit) {
    Add("time_limit", absl::FormatDuration(limit),
        absl::StrCat("must be above 0 and at most ",
                     absl::FormatDuration(kLongestTimeLimit)),
        "leave it out for a minute", violations);
  }
  return limit;
}

// Why there is no schedule.
absl::Status NoSchedule(const GraphPlan& plan, int64_t budget_bytes,
                        absl::Duration limit) {
  const int64_t bound = plan.least_budget_bound;
  const int64_t found = plan.least_budget_found;
  if (plan.outcome == GraphPlan::Outcome::kUndecided) {
    return absl::DeadlineExceededError(absl::StrCat(
        "no schedule within ", budget_bytes, " B was found in ",
        absl::FormatDuration(limit), ", and none is ruled out: ",
        found > 0 ? absl::StrCat("one within ", found, " B was found; ") : "",
        "give it more time or a larger budget"));
  }
  const std::string short_of =
      absl::StrCat("does not fit: the budget is ", budget_bytes, " B, ");
  if (found == bound) {
    return absl::ResourceExhaustedError(
        absl::StrCat(short_of, "the least feasible budget is ", bound, " B"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      short_of, "the least feasible budget is at least ", bound, " B (proven)",
      found > 0 ? absl::StrCat(" and at most ", found, " B (found)")
                : "; no schedule was found in the time given"));
}

}  // namespace

absl::StatusOr<v1::PlanGraphResponse> GraphRequests::Plan(
    const v1::PlanGraphRequest& request,
    const std::function<bool()>& cancelled) {
  Violations violations;
  CheckSize("graph", request.graph().size(), kMaxGraphBytes, &violations);
  const int64_t budget = request.budget_bytes();
  if (budget < 1 || budget > kMaxProblemBudget) {
    Add("budget_bytes", absl::StrCat(budget),
        absl::StrCat("must be from 1 to ", kMaxProblemBudget),
        "say how many bytes may be resident at a time", &violations);
  }
  const absl::Duration limit = TimeLimit(request, &violations);
  ReadProblem read;
  if (request.graph().size() <= kMaxGraphBytes) {
    read = ReadGraphProblem(request.graph());
    AddMistakes(read.mistakes, &violations);
  }
  if (!violations.empty()) {
    return ViolationsStatus(absl::StatusCode::kInvalidArgument, violations);
  }
  const absl::Cleanup leave = [this] { --num_searches_; };
  if (++num_searches_ > kMaxGraphSearches) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many searches run, at most ", kMaxGraphSearches,
                     ": try again later"));
  }
  const absl::Time start = absl::Now();
  GraphPlanOptions options;
  options.time_used = [&] {
    return cancelled() ? 1 : absl::FDivDuration(absl::Now() - start, limit);
  };
  const GraphPlan plan = PlanGraph(read.problem, budget, options);
  if (cancelled()) return absl::CancelledError("the client is gone");
  EBB_LOG(INFO) << "planned a graph of " << read.problem.nodes.size()
                << " nodes in " << absl::FormatDuration(absl::Now() - start)
                << ", " << plan.num_states << " states";
  if (plan.outcome != GraphPlan::Outcome::kPlanned) {
    return NoSchedule(plan, budget, limit);
  }
  const CheckedSchedule checked =
      CheckSchedule(read.problem, budget, plan.steps);
  if (!checked.ok()) {
    return absl::InternalError(
        absl::StrCat("the planner's schedule is wrong: schedule[", checked.step,
                     "]: ", checked.violation));
  }
  v1::PlanGraphResponse response;
  response.set_total_seconds(plan.total_seconds);
  response.set_peak_bytes(plan.peak_bytes);
  response.set_lower_bound_seconds(plan.lower_bound_seconds);
  response.set_optimal(plan.optimal);
  for (const ScheduleStep step : plan.steps) {
    response.add_schedule(ScheduleStepText(read.problem, step));
  }
  return response;
}

absl::StatusOr<v1::CheckScheduleResponse> GraphRequests::Check(
    const v1::CheckScheduleRequest& request) {
  Violations violations;
  CheckSize("schedule", request.schedule().size(), kMaxScheduleBytes,
            &violations);
  CheckSize("graph", request.graph().size(), kMaxGraphBytes, &violations);
  if (request.budget_bytes() < 0 ||
      request.budget_bytes() > kMaxProblemBudget) {
    Add("budget_bytes", absl::StrCat(request.budget_bytes()),
        absl::StrCat("must be at most ", kMaxProblemBudget),
        "leave it out for the schedule's own", &violations);
  }
  ReadScheduleFile read;
  if (violations.empty()) {
    read = ReadSchedule(request.schedule(), request.graph());
    AddMistakes(read.mistakes, &violations);
  }
  if (request.budget_bytes() > 0) read.budget_bytes = request.budget_bytes();
  if (violations.empty() && !read.budget_bytes) {
    Add("budget_bytes", "", "is required", "add it, or give it by --budget",
        &violations);
  }
  if (!violations.empty()) {
    return ViolationsStatus(absl::StatusCode::kInvalidArgument, violations);
  }
  const CheckedSchedule checked =
      CheckSchedule(read.problem, *read.budget_bytes, read.steps);
  if (!checked.ok()) {
    const bool at_end = checked.step == static_cast<int>(read.steps.size());
    Add(at_end ? "schedule" : absl::StrCat("schedule[", checked.step, "]"),
        at_end ? "its end"
               : ScheduleStepText(read.problem, read.steps[checked.step]),
        checked.violation, "", &violations);
  } else {
    if (read.total_seconds &&
        !(std::fabs(*read.total_seconds - checked.total_seconds) <=
          kSumTolerance * checked.total_seconds)) {
      Add("total_seconds", absl::StrCat(*read.total_seconds),
          absl::StrCat("the schedule takes ", checked.total_seconds), "",
          &violations);
    }
    if (read.peak_bytes && *read.peak_bytes != checked.peak_bytes) {
      Add("peak_bytes", absl::StrCat(*read.peak_bytes),
          absl::StrCat("the schedule's peak is ", checked.peak_bytes), "",
          &violations);
    }
  }
  if (!violations.empty()) {
    return ViolationsStatus(absl::StatusCode::kInvalidArgument, violations);
  }
  v1::CheckScheduleResponse response;
  response.set_total_seconds(checked.total_seconds);
  response.set_peak_bytes(checked.peak_bytes);
  response.set_budget_bytes(*read.budget_bytes);
  response.set_num_computations(checked.num_computations);
  response.set_num_recomputations(checked.num_recomputations);
  return response;
}

}  // namespace ebb
