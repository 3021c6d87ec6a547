// See graph_text.h.
#include "client/commands/graph_text.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/format.h"
#include "proto/job_service.pb.h"
#include "proto/violations.h"

namespace ebb {
namespace {

// "26 computations, 9 of them again"
std::string ComputationsText(int64_t all, int64_t again) {
  return absl::StrCat(
      all, all == 1 ? " computation" : " computations",
      again > 0 ? absl::StrCat(", ", again, " of them again") : "");
}

std::string MemoryText(int64_t peak_bytes, int64_t budget_bytes) {
  return absl::StrCat("peak ", FormatExactBytes(peak_bytes), " of a budget of ",
                      FormatExactBytes(budget_bytes));
}

}  // namespace

std::string GraphPlanText(const v1::PlanGraphResponse& plan,
                          const std::string& file, int64_t budget_bytes) {
  std::map<std::string, int64_t> num_runs;
  int64_t all = 0;
  for (const std::string& step : plan.schedule()) {
    if (!absl::StartsWith(step, "compute ")) continue;
    ++num_runs[step];
    ++all;
  }
  std::string text = absl::StrCat("schedule of ", OneLine(file, 4096), ": ",
                                  plan.total_seconds(), " s, ");
  if (plan.optimal()) {
    absl::StrAppend(&text, "optimal\n");
  } else {
    const double gap =
        plan.lower_bound_seconds() > 0
            ? plan.total_seconds() / plan.lower_bound_seconds() - 1
            : 0;
    absl::StrAppend(&text, "not proven optimal: at least ",
                    plan.lower_bound_seconds(), " s are needed (",
                    FormatPercent(gap), " above that)\n");
  }
  absl::StrAppend(
      &text, MemoryText(plan.peak_bytes(), budget_bytes), "\n",
      ComputationsText(all, all - static_cast<int64_t>(num_runs.size())),
      "\n\n");
  for (const std::string& step : plan.schedule()) {
    absl::StrAppend(&text, OneLine(step, 4096), "\n");
  }
  return text;
}

std::string CheckedScheduleText(const v1::CheckScheduleResponse& checked,
                                const std::string& file) {
  return absl::StrCat(
      OneLine(file, 4096), " keeps every rule: ", checked.total_seconds(),
      " s, ",
      ComputationsText(checked.num_computations(),
                       checked.num_recomputations()),
      "\n", MemoryText(checked.peak_bytes(), checked.budget_bytes()), "\n");
}

}  // namespace ebb
