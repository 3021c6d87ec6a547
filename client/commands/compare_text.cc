// See compare_text.h.
#include "client/commands/compare_text.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/job_text.h"
#include "client/format.h"
#include "client/table.h"
#include "nlohmann/json.hpp"
#include "proto/violations.h"

namespace ebb {
namespace {

constexpr int64_t kMeanSteps = 20;

int64_t SumPeak(const v1::RankStep& rank) {
  int64_t sum = 0;
  for (const auto& [name, bytes] : rank.memory()) sum += bytes.peak_bytes();
  return sum;
}

// "5.00 MiB / 4.98 MiB"; one figure for two that are equal to the byte.
std::string BothBytes(int64_t predicted, int64_t measured, bool has_steps) {
  if (!has_steps) return absl::StrCat(FormatBytes(predicted), " / -");
  if (predicted == measured) return FormatBytes(predicted);
  return absl::StrCat(FormatBytes(predicted), " / ", FormatBytes(measured));
}

std::string LossText(const LossComparison& losses) {
  if (losses.common_steps == 0) return "-";
  if (losses.first_difference > 0) {
    return absl::StrCat("differ at ", losses.first_difference);
  }
  return "same bits";
}

}  // namespace

JobSummary Summarize(const ComparedJob& job) {
  JobSummary summary;
  const v1::RankStep* largest = nullptr;
  int64_t tokens = 0;
  double seconds = 0;
  for (const v1::Step& step : job.steps) {
    if (job.steps.size() == 1 || &step != &job.steps.front()) {
      tokens += step.tokens();
      seconds += step.duration_seconds();
    }
    for (const v1::RankStep& rank : step.ranks()) {
      summary.saved_bytes = std::max(summary.saved_bytes, rank.saved_bytes());
      if (largest == nullptr || SumPeak(rank) > SumPeak(*largest)) {
        largest = &rank;
      }
    }
  }
  if (seconds > 0) {
    summary.tokens_per_second = static_cast<double>(tokens) / seconds;
  }
  if (largest != nullptr) {
    for (const auto& [name, bytes] : largest->memory()) {
      summary.memory[name] = bytes;
    }
  } else {
    const v1::RankPlan* rank = nullptr;
    for (const v1::RankPlan& candidate : job.job.plan().ranks()) {
      if (rank == nullptr || candidate.peak_bytes() > rank->peak_bytes()) {
        rank = &candidate;
      }
    }
    if (rank != nullptr) {
      for (const auto& [name, bytes] : rank->memory()) {
        summary.memory[name].set_predicted_bytes(bytes);
      }
    }
  }
  for (const auto& [name, bytes] : summary.memory) {
    summary.predicted_peak_bytes += bytes.predicted_bytes();
    summary.peak_bytes += bytes.peak_bytes();
  }
  summary.model_flops = job.steps.empty() ? job.job.plan().model_flops()
                                          : job.steps.back().model_flops();
  summary.recompute_flops = job.steps.empty()
                                ? job.job.plan().recompute_flops()
                                : job.steps.back().recompute_flops();
  if (job.steps.empty()) return summary;
  summary.last_loss = job.steps.back().loss();
  summary.mean_steps =
      std::min(kMeanSteps, static_cast<int64_t>(job.steps.size()));
  for (auto step = job.steps.end() - summary.mean_steps;
       step != job.steps.end(); ++step) {
    summary.mean_loss += step->loss() / static_cast<double>(summary.mean_steps);
  }
  return summary;
}

LossComparison CompareLosses(const ComparedJob& a, const ComparedJob& b) {
  LossComparison losses;
  auto other = b.steps.begin();
  for (const v1::Step& step : a.steps) {
    while (other != b.steps.end() && other->step() < step.step()) ++other;
    if (other == b.steps.end()) break;
    if (other->step() != step.step()) continue;
    ++losses.common_steps;
    const bool same = std::bit_cast<uint64_t>(step.loss()) ==
                      std::bit_cast<uint64_t>(other->loss());
    if (!same && losses.first_difference == 0) {
      losses.first_difference = step.step();
    }
  }
  return losses;
}

std::string CompareTable(const std::vector<ComparedJob>& jobs) {
  std::vector<Column> columns = {{""}};
  for (const ComparedJob& job : jobs) columns.push_back({job.job.id(), true});
  Table table(columns);
  std::vector<JobSummary> summaries;
  for (const ComparedJob& job : jobs) summaries.push_back(Summarize(job));
  const auto add = [&](const std::string& name,
                       const std::function<std::string(size_t)>& cell) {
    std::vector<std::string> row = {name};
    for (size_t j = 0; j < jobs.size(); ++j) row.push_back(cell(j));
    table.AddRow(std::move(row));
  };
  const auto has_steps = [&](size_t j) { return !jobs[j].steps.empty(); };
  add("name", [&](size_t j) { return OneLine(jobs[j].job.name(), 32); });
  add("state", [&](size_t j) { return StateWord(jobs[j].job); });
  add("step", [&](size_t j) {
    return absl::StrCat(jobs[j].job.last_step(), "/",
                        jobs[j].job.spec().steps());
  });
  add("policy", [&](size_t j) { return jobs[j].job.plan().policy(); });
  for (const std::string& name : MemoryClasses()) {
    add(name, [&](size_t j) {
      const v1::ClassBytes& bytes = summaries[j].memory[name];
      return BothBytes(bytes.predicted_bytes(), bytes.peak_bytes(),
                       has_steps(j));
    });
  }
  add("peak", [&](size_t j) {
    return BothBytes(summaries[j].predicted_peak_bytes, summaries[j].peak_bytes,
                     has_steps(j));
  });
  const auto measured = [&](size_t j, const std::string& text) {
    return has_steps(j) ? text : std::string("-");
  };
  add("largest saved", [&](size_t j) {
    return measured(j, FormatBytes(summaries[j].saved_bytes));
  });
  add("model FLOPs",
      [&](size_t j) { return FormatFlops(summaries[j].model_flops); });
  add("recompute FLOPs",
      [&](size_t j) { return FormatFlops(summaries[j].recompute_flops); });
  add("recompute share", [&](size_t j) {
    return FormatPercent(
        RecomputeShare(summaries[j].model_flops, summaries[j].recompute_flops));
  });
  add("tokens/s", [&](size_t j) {
    return measured(j, FormatCount(summaries[j].tokens_per_second));
  });
  add("last loss", [&](size_t j) {
    return measured(j, FormatLoss(summaries[j].last_loss));
  });
  add("mean loss, last 20", [&](size_t j) {
    return measured(j, FormatLoss(summaries[j].mean_loss));
  });
  if (jobs.size() > 1) {
    const auto losses = [&](size_t j) {
      return CompareLosses(jobs[0], jobs[j]);
    };
    add(absl::StrCat("losses, ", jobs[0].job.id()),
        [&](size_t j) { return j == 0 ? std::string() : LossText(losses(j)); });
    add("common steps", [&](size_t j) {
      return j == 0 ? std::string() : absl::StrCat(losses(j).common_steps);
    });
  }
  add("weights", [&](size_t j) {
    const uint64_t hash = jobs[j].job.weights_hash();
    return hash == 0 ? std::string("-") : absl::StrFormat("%08x", hash >> 32);
  });
  return absl::StrCat(
      "bytes: of the rank and step with the largest peak, predicted / "
      "measured, or one figure where they are equal to the byte\n"
      "FLOPs: of a step, attention as full square; losses: bit by bit with the "
      "first job's; weights: start of their hash at the end\n",
      table.Render());
}

nlohmann::ordered_json CompareJson(const std::vector<ComparedJob>& jobs) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ComparedJob& job : jobs) {
    const JobSummary summary = Summarize(job);
    const LossComparison losses = CompareLosses(jobs[0], job);
    nlohmann::ordered_json memory = nlohmann::ordered_json::object();
    for (const std::string& name : MemoryClasses()) {
      const auto found = summary.memory.find(name);
      const v1::ClassBytes bytes =
          found == summary.memory.end() ? v1::ClassBytes() : found->second;
      memory[name] = {
          {"predicted_bytes", absl::StrCat(bytes.predicted_bytes())},
          {"peak_bytes", absl::StrCat(bytes.peak_bytes())}};
    }
    list.push_back(
        {{"id", job.job.id()},
         {"name", job.job.name()},
         {"state", v1::State_Name(job.job.state())},
         {"policy", job.job.plan().policy()},
         {"last_step", job.job.last_step()},
         {"steps", absl::StrCat(job.job.spec().steps())},
         {"memory", memory},
         {"predicted_peak_bytes", absl::StrCat(summary.predicted_peak_bytes)},
         {"peak_bytes", absl::StrCat(summary.peak_bytes)},
         {"saved_bytes", absl::StrCat(summary.saved_bytes)},
         {"model_flops", summary.model_flops},
         {"recompute_flops", summary.recompute_flops},
         {"recompute_share",
          RecomputeShare(summary.model_flops, summary.recompute_flops)},
         {"tokens_per_second", summary.tokens_per_second},
         {"last_loss", summary.last_loss},
         {"mean_loss", summary.mean_loss},
         {"mean_steps", summary.mean_steps},
         {"weights_hash", absl::StrCat(job.job.weights_hash())},
         {"losses",
          {{"compared_with", jobs[0].job.id()},
           {"common_steps", losses.common_steps},
           {"same_bits",
            losses.common_steps > 0 && losses.first_difference == 0},
           {"first_difference", losses.first_difference}}}});
  }
  return {{"jobs", list}};
}

}  // namespace ebb
