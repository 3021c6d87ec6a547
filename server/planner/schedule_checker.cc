// See schedule_checker.h.
#include "server/planner/schedule_checker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ebb {
namespace {

constexpr int kNever = -1;

// Where a value stands.
struct Value {
  bool resident = false;
  int computed_at = kNever;  // the step that computed it last
  int freed_at = kNever;     // the step that freed it last
  int64_t num_runs = 0;
};

class Replay {
 public:
  Replay(const GraphProblem& problem, int64_t budget_bytes)
      : problem_(problem),
        budget_bytes_(budget_bytes),
        values_(problem.nodes.size()),
        resident_bytes_(problem.resident_bytes) {}

  CheckedSchedule Run(const std::vector<ScheduleStep>& steps) {
    result_.violation = Reach(resident_bytes_, "resident_bytes of the graph");
    while (result_.ok() && result_.step < static_cast<int>(steps.size())) {
      const ScheduleStep step = steps[result_.step];
      result_.violation = step.action == ScheduleStep::Action::kCompute
                              ? Compute(step.node)
                              : Free(step.node);
      if (result_.ok()) ++result_.step;
    }
    if (result_.ok()) result_.violation = End();
    for (size_t i = 0; i < values_.size(); ++i) {
      result_.total_seconds +=
          static_cast<double>(values_[i].num_runs) * problem_.nodes[i].seconds;
      result_.num_computations += values_[i].num_runs;
      result_.num_recomputations +=
          std::max<int64_t>(0, values_[i].num_runs - 1);
    }
    return result_;
  }

 private:
  std::string Compute(int position) {
    const ProblemNode& node = problem_.nodes[position];
    Value& value = values_[position];
    if (value.resident) {
      return absl::StrCat(node.name, " is resident already: schedule[",
                          value.computed_at, "] computed it");
    }
    if (value.num_runs > 0 && !node.recomputable) {
      return absl::StrCat(node.name,
                          " is not recomputable and has run: schedule[",
                          value.computed_at, "] computed it");
    }
    for (const int input : node.inputs) {
      if (!values_[input].resident) {
        return absl::StrCat("its input ", problem_.nodes[input].name,
                            " is not resident: ", WhyAbsent(values_[input]));
      }
    }
    resident_bytes_ += node.bytes;
    value.resident = true;
    value.computed_at = result_.step;
    ++value.num_runs;
    return Reach(resident_bytes_ + node.workspace_bytes, node.name);
  }

  std::string Free(int position) {
    Value& value = values_[position];
    if (!value.resident) {
      return absl::StrCat(problem_.nodes[position].name,
                          " is not resident: ", WhyAbsent(value));
    }
    value.resident = false;
    value.freed_at = result_.step;
    resident_bytes_ -= problem_.nodes[position].bytes;
    return "";
  }

  std::string End() const {
    for (const int output : problem_.outputs) {
      if (!values_[output].resident) {
        return absl::StrCat(
            "the output ", problem_.nodes[output].name,
            " is not resident at the end: ", WhyAbsent(values_[output]));
      }
    }
    return "";
  }

  static std::string WhyAbsent(const Value& value) {
    if (value.num_runs == 0) return "it was never computed";
    return absl::StrCat("schedule[", value.freed_at, "] freed it");
  }

  // Counts a moment with so many bytes resident.
  std::string Reach(int64_t bytes, const std::string& what) {
    result_.peak_bytes = std::max(result_.peak_bytes, bytes);
    if (bytes <= budget_bytes_) return "";
    return absl::StrCat(what, " makes ", bytes,
                        " bytes resident, and the budget is ", budget_bytes_);
  }

  const GraphProblem& problem_;
  const int64_t budget_bytes_;
  std::vector<Value> values_;
  int64_t resident_bytes_;
  CheckedSchedule result_;
};

}  // namespace

CheckedSchedule CheckSchedule(const GraphProblem& problem, int64_t budget_bytes,
                              const std::vector<ScheduleStep>& steps) {
  return Replay(problem, budget_bytes).Run(steps);
}

}  // namespace ebb
