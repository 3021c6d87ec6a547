// See progress.h.
#include "client/progress.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/format.h"

namespace ebb {
namespace {

// Weight of the newest step: about the last ten steps count, so that a slow
// first step is soon forgotten.
constexpr double kNewestWeight = 0.2;

constexpr int kMinBarWidth = 10;
constexpr int kMaxBarWidth = 40;

double Average(double average, double newest) {
  if (average == 0) return newest;
  return average + kNewestWeight * (newest - average);
}

double DoneRatio(const Progress& progress) {
  if (progress.planned_steps <= 0) return 0;
  return std::clamp(static_cast<double>(progress.step) /
                        static_cast<double>(progress.planned_steps),
                    0.0, 1.0);
}

// In order of importance.
std::vector<std::string> Fields(const Progress& progress) {
  std::vector<std::string> fields = {
      absl::StrCat("step ", progress.step, "/", progress.planned_steps)};
  if (progress.step == 0) return fields;
  fields.push_back(absl::StrCat("loss ", FormatLoss(progress.loss)));
  fields.push_back(
      progress.budget_bytes > 0
          ? absl::StrCat("memory ", FormatBytes(progress.peak_bytes), " of ",
                         FormatBytes(progress.budget_bytes))
          : absl::StrCat("memory ", FormatBytes(progress.peak_bytes)));
  fields.push_back(
      absl::StrCat("recompute ", FormatPercent(progress.recompute_share)));
  const absl::Duration remaining = RemainingTime(progress);
  if (remaining < absl::InfiniteDuration() &&
      remaining > absl::ZeroDuration()) {
    fields.push_back(absl::StrCat("ETA ", DurationText(remaining)));
  }
  fields.push_back(
      absl::StrCat(FormatCount(progress.tokens_per_second), " tokens/s"));
  return fields;
}

}  // namespace

void AddStep(const ProgressStep& step, Progress* progress) {
  progress->step = step.step;
  progress->loss = step.loss;
  progress->peak_bytes = step.peak_bytes;
  const double flops = step.model_flops + step.recompute_flops;
  progress->recompute_share = flops > 0 ? step.recompute_flops / flops : 0;
  if (step.duration_seconds <= 0) return;
  progress->seconds_per_step =
      Average(progress->seconds_per_step, step.duration_seconds);
  progress->tokens_per_second =
      Average(progress->tokens_per_second,
              static_cast<double>(step.tokens) / step.duration_seconds);
}

absl::Duration RemainingTime(const Progress& progress) {
  if (progress.ended) return absl::ZeroDuration();
  if (progress.seconds_per_step <= 0) return absl::InfiniteDuration();
  const int64_t steps =
      std::max<int64_t>(0, progress.planned_steps - progress.step);
  return absl::Seconds(static_cast<double>(steps) * progress.seconds_per_step);
}

std::string RenderBar(const Progress& progress, int columns) {
  std::vector<std::string> fields = Fields(progress);
  const int head = DisplayWidth(progress.state) + 3;  // " [" and "]"
  const auto width = [&] {
    return head + 2 + DisplayWidth(absl::StrJoin(fields, "  "));
  };
  while (fields.size() > 1 && width() + kMinBarWidth > columns) {
    fields.pop_back();
  }
  const int bar = std::clamp(columns - width(), 0, kMaxBarWidth);
  if (bar < kMinBarWidth) {
    std::string line = absl::StrCat(progress.state, " ", fields[0]);
    if (DisplayWidth(line) > columns) line.resize(std::max(0, columns));
    return line;
  }
  const int done = static_cast<int>(DoneRatio(progress) * bar);
  std::string drawn(done, '=');
  if (done < bar) drawn += '>';
  drawn.resize(bar, ' ');
  return absl::StrCat(progress.state, " [", drawn, "]  ",
                      absl::StrJoin(fields, "  "));
}

std::string RenderLine(const Progress& progress) {
  return absl::StrCat(progress.state, "  ",
                      absl::StrJoin(Fields(progress), "  "));
}

}  // namespace ebb
