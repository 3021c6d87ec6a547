// Judges a step by its loss and gradient norm alone.
#include "server/training_warning.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ebb {
namespace {

// A model that guesses evenly has a loss of ln(vocab); wrong weights or data
// cost a few times as much, a rate at which weights explode far more.
constexpr double kDivergingRatio = 10;

// printf shows the sign of a NaN, which means nothing.
std::string Number(double value) {
  return std::isnan(value) ? "nan" : absl::StrFormat("%.5g", value);
}

}  // namespace

std::optional<v1::TrainingWarning> WarningOf(const v1::Step& step,
                                             const v1::Job& job) {
  const double guessing = std::log(job.spec().model().vocab());
  v1::TrainingWarning warning;
  warning.set_step(step.step());
  if (!std::isfinite(step.loss()) || !std::isfinite(step.gradient_norm())) {
    warning.set_kind(v1::TrainingWarning::KIND_NOT_FINITE);
    warning.set_message(absl::StrCat(
        "loss ", Number(step.loss()), " and gradient norm ",
        Number(step.gradient_norm()), " at step ", step.step(), ": not finite",
        step.skipped() ? ", the weights stay as they were" : "",
        "; try a lower optimizer.lr or a longer lr_schedule.warmup"));
  } else if (step.loss() > kDivergingRatio * guessing) {
    warning.set_kind(v1::TrainingWarning::KIND_DIVERGING);
    warning.set_message(absl::StrCat(
        "loss ", Number(step.loss()), " at step ", step.step(), ": more than ",
        kDivergingRatio, " times that of guessing (", Number(guessing),
        "), training diverges; try a lower optimizer.lr or a longer "
        "lr_schedule.warmup"));
  } else {
    return std::nullopt;
  }
  if (warning.kind() <= job.warning().kind()) return std::nullopt;
  return warning;
}

}  // namespace ebb
