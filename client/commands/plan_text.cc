// See plan_text.h.
#include "client/commands/plan_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/job_text.h"
#include "client/format.h"
#include "client/table.h"
#include "proto/job_service.pb.h"
#include "proto/plan.pb.h"
#include "proto/violations.h"

namespace ebb {
namespace {

// A column per rank up to here; of more ranks the one with the largest peak.
constexpr int kMaxRankColumns = 4;

std::vector<const v1::RankPlan*> ShownRanks(const v1::Plan& plan) {
  std::vector<const v1::RankPlan*> ranks;
  for (const v1::RankPlan& rank : plan.ranks()) ranks.push_back(&rank);
  if (ranks.size() <= kMaxRankColumns) return ranks;
  return {*std::max_element(ranks.begin(), ranks.end(),
                            [](const auto* a, const auto* b) {
                              return a->peak_bytes() < b->peak_bytes();
                            })};
}

std::string MachineText(const v1::Backend& backend) {
  std::string text = absl::StrCat(
      backend.kind(), backend.device_model().empty() ? "" : " ",
      OneLine(backend.device_model()),
      backend.instruction_set().empty() ? "" : ", ", backend.instruction_set(),
      ", ", backend.threads(), backend.threads() == 1 ? " thread" : " threads");
  if (backend.built_in()) absl::StrAppend(&text, " (built-in description)");
  return text;
}

// Share of recompute FLOPs, exact enough to see small ones.
std::string RecomputeText(double model_flops, double recompute_flops) {
  return absl::StrCat(
      FormatFlops(recompute_flops), " (",
      FormatPercent(RecomputeShare(model_flops, recompute_flops)), ")");
}

std::string PolicyTable(const v1::Plan& plan) {
  Table table({{"POLICY"},
               {"PEAK", true},
               {"SAVED", true},
               {"STEP", true},
               {"RECOMPUTE", true},
               {"FITS"}});
  for (const v1::PlanCandidate& candidate : plan.pareto()) {
    table.AddRow(
        {candidate.policy(), FormatExactBytes(candidate.peak_bytes()),
         FormatExactBytes(candidate.saved_bytes()),
         FormatSeconds(candidate.step_seconds()),
         RecomputeText(candidate.model_flops(), candidate.recompute_flops()),
         candidate.fits() ? "yes" : "no"});
  }
  return table.Render(2);
}

std::string DecisionTable(const v1::Plan& plan) {
  Table table({{"VALUE"},
               {"DECISION"},
               {"BYTES", true},
               {"TIME", true},
               {"FLOPS", true},
               {"REASON"}});
  for (const v1::Decision& decision : plan.decisions()) {
    const std::string place = decision.offload_place().empty()
                                  ? ""
                                  : " to " + decision.offload_place();
    const std::string format = decision.encode_format().empty()
                                   ? ""
                                   : " as " + decision.encode_format();
    table.AddRow(
        {OneLine(decision.value(), 200), decision.decision() + format + place,
         FormatExactBytes(decision.bytes()), FormatSeconds(decision.seconds()),
         FormatFlops(decision.flops()), OneLine(decision.reason(), 1000)});
  }
  return table.Render(2);
}

}  // namespace

std::string PlanMemoryText(const v1::Plan& plan, const v1::Step* measured) {
  const std::vector<const v1::RankPlan*> ranks = ShownRanks(plan);
  std::vector<Column> columns = {{"CLASS"}};
  for (const v1::RankPlan* rank : ranks) {
    columns.push_back({absl::StrCat("RANK ", rank->rank()), true});
    if (measured != nullptr) columns.push_back({"MEASURED", true});
  }
  Table table(columns);
  const auto measured_of = [&](const v1::RankPlan& rank,
                               const std::string& memory_class) {
    int64_t bytes = 0;  // of the class; of all: their sum
    for (const v1::RankStep& step : measured->ranks()) {
      if (step.rank() != rank.rank()) continue;
      for (const auto& [name, memory] : step.memory()) {
        if (memory_class.empty() || name == memory_class) {
          bytes += memory.peak_bytes();
        }
      }
    }
    return FormatExactBytes(bytes);
  };
  // `memory_class`: what of a step stands beside; null: nothing.
  const auto add_row = [&](const std::string& name, auto bytes_of,
                           const char* memory_class = nullptr) {
    std::vector<std::string> row = {name};
    for (const v1::RankPlan* rank : ranks) {
      row.push_back(FormatExactBytes(bytes_of(*rank)));
      if (measured == nullptr) continue;
      row.push_back(memory_class == nullptr ? ""
                                            : measured_of(*rank, memory_class));
    }
    table.AddRow(row);
  };
  for (const std::string& name : MemoryClasses()) {
    add_row(
        name,
        [&](const v1::RankPlan& rank) {
          const auto it = rank.memory().find(name);
          return it == rank.memory().end() ? 0 : it->second;
        },
        name.c_str());
  }
  add_row(
      "peak", [](const auto& rank) { return rank.peak_bytes(); }, "");
  add_row("state arena",
          [](const auto& rank) { return rank.state_arena_bytes(); });
  add_row("step arena",
          [](const auto& rank) { return rank.step_arena_bytes(); });
  add_row("largest saved", [](const auto& rank) { return rank.saved_bytes(); });
  add_row("host", [](const auto& rank) { return rank.host_bytes(); });
  add_row("disk", [](const auto& rank) { return rank.disk_bytes(); });
  std::string text;
  if (ranks.size() < static_cast<size_t>(plan.ranks_size())) {
    absl::StrAppend(&text, "  (the largest of ", plan.ranks_size(),
                    " ranks)\n");
  }
  return text + table.Render(2);
}

std::string PlanText(const v1::Plan& plan, absl::string_view job_name) {
  std::string text = absl::StrCat(
      "plan", job_name.empty() ? "" : " of ", OneLine(job_name), ": policy ",
      plan.policy(),
      plan.group() > 0 ? absl::StrCat(", groups of ", plan.group(), " layers")
                       : "",
      plan.fits() ? ", fits" : ", DOES NOT FIT", "\n");
  absl::StrAppend(&text, "machine: ", MachineText(plan.backend()), "\n");
  absl::StrAppend(&text, "budget: ", FormatExactBytes(plan.budget_bytes()),
                  " of device memory a rank\n");
  if (plan.step_seconds() > 0) {
    absl::StrAppend(
        &text, "step time: ", FormatSeconds(plan.step_seconds()),
        plan.bound_seconds() > 0
            ? absl::StrCat(", of ", FormatSeconds(plan.bound_seconds()),
                           " that any plan takes at least")
            : "",
        "\n");
  }
  absl::StrAppend(&text,
                  "FLOPs of a step over all ranks, attention as full square: "
                  "model ",
                  FormatFlops(plan.model_flops()), ", recompute ",
                  RecomputeText(plan.model_flops(), plan.recompute_flops()),
                  "\n");
  absl::StrAppend(&text, "\nmemory at the peak of a step:\n",
                  PlanMemoryText(plan));
  if (plan.pareto_size() > 0) {
    absl::StrAppend(&text, "\n",
                    plan.policy() == "auto" ? "what other budgets would give"
                                            : "what each policy would cost",
                    " (recompute: FLOPs and share of all FLOPs, attention as "
                    "full square):\n",
                    PolicyTable(plan));
  }
  if (plan.decisions_size() > 0) {
    absl::StrAppend(&text, "\ndecisions, for values that backward reads:\n",
                    DecisionTable(plan));
  }
  if (plan.notes_size() > 0) {
    absl::StrAppend(&text, "\nnotes:\n");
    for (const std::string& note : plan.notes()) {
      absl::StrAppend(&text, "  ", OneLine(note, 2000), "\n");
    }
  }
  return text;
}

}  // namespace ebb
