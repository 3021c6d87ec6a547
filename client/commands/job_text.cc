// See job_text.h.
#include "client/commands/job_text.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/exit_code.h"
#include "client/format.h"
#include "kernels/status.h"
#include "proto/job_service.pb.h"
#include "proto/violations.h"

namespace ebb {
namespace {

std::string EnumWord(absl::string_view name, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

// In a plan: of the ranks' peaks; in a step: of the sums of their classes.
template <typename Ranks, typename PeakOf>
int64_t LargestPeak(const Ranks& ranks, PeakOf peak_of) {
  int64_t largest = 0;
  for (const auto& rank : ranks) largest = std::max(largest, peak_of(rank));
  return largest;
}

// Why a job is in its state, and what is wrong with its training.
std::vector<std::string> ReasonWords(const v1::Job& job) {
  std::vector<std::string> words;
  if (job.reason() != v1::REASON_UNSPECIFIED) words.push_back(ReasonWord(job));
  if (job.has_warning()) {
    words.push_back(EnumWord(
        v1::TrainingWarning::Kind_Name(job.warning().kind()), "KIND_"));
  }
  return words;
}

}  // namespace

std::vector<std::string> MemoryClasses() {
  return {"parameters", "gradients",    "optimizer", "saved",
          "live",       "recompute",    "workspace", "communication",
          "runtime",    "fragmentation"};
}

std::string StateWord(const v1::Job& job) {
  return EnumWord(v1::State_Name(job.state()), "STATE_");
}

std::vector<std::string> StateWords() {
  std::vector<std::string> words;
  for (int number = 1; v1::State_IsValid(number); ++number) {
    v1::Job job;
    job.set_state(static_cast<v1::State>(number));
    words.push_back(StateWord(job));
  }
  return words;
}

std::string ReasonWord(const v1::Job& job) {
  if (job.reason() == v1::REASON_UNSPECIFIED) return "";
  return EnumWord(v1::Reason_Name(job.reason()), "REASON_");
}

absl::Time ToTime(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0 && time.nanos() == 0) return absl::InfinitePast();
  return absl::FromUnixSeconds(time.seconds()) +
         absl::Nanoseconds(time.nanos());
}

Table JobTable() {
  return Table({{"ID"},
                {.header = "NAME", .dispensable = 3, .cut_width = 12},
                {"STATE"},
                {.header = "REASON", .dispensable = 2},
                {"STEP", true},
                {.header = "LOSS", .right = true, .dispensable = 1},
                {.header = "POLICY", .dispensable = 4},
                {.header = "PEAK", .right = true, .dispensable = 5},
                {.header = "CREATED", .dispensable = 6}});
}

std::vector<std::string> JobRow(const v1::Job& job, absl::TimeZone zone) {
  return {job.id(),
          OneLine(job.name(), 32),
          StateWord(job),
          absl::StrJoin(ReasonWords(job), ", "),
          absl::StrCat(job.last_step(), "/", job.spec().steps()),
          job.last_step() > 0 ? FormatLoss(job.last_loss()) : "",
          job.plan().policy(),
          FormatBytes(PeakBytes(job.plan())),
          TimeText(ToTime(job.create_time()), zone)};
}

Table StepTable() {
  return Table({{"STEP", true, 8},
                {"LOSS", true, 9},
                {"GRAD NORM", true, 9},
                {"LEARNING RATE", true, 13},
                {"TOKENS/S", true, 8},
                {"SECONDS", true, 8},
                {"PEAK", true, 9},
                {"SAVED", true, 9},
                {"RECOMPUTE", true, 9},
                {"POLICY"}});
}

std::vector<std::string> StepRow(const v1::Step& step) {
  const int64_t saved_bytes =
      LargestPeak(step.ranks(),
                  [](const v1::RankStep& rank) { return rank.saved_bytes(); });
  const double tokens_per_second =
      step.duration_seconds() > 0
          ? static_cast<double>(step.tokens()) / step.duration_seconds()
          : 0;
  return {
      absl::StrCat(step.step()),
      FormatLoss(step.loss()),
      absl::StrFormat("%.4g%s", step.gradient_norm(),
                      step.skipped() ? " skipped" : ""),
      absl::StrFormat("%.4g", step.learning_rate()),
      FormatCount(tokens_per_second),
      absl::StrFormat("%.3f", step.duration_seconds()),
      FormatBytes(PeakBytes(step)),
      FormatBytes(saved_bytes),
      FormatPercent(RecomputeShare(step.model_flops(), step.recompute_flops())),
      step.policy()};
}

int64_t PeakBytes(const v1::Step& step) {
  return LargestPeak(step.ranks(), [](const v1::RankStep& rank) {
    int64_t sum = 0;
    for (const auto& [name, bytes] : rank.memory()) sum += bytes.peak_bytes();
    return sum;
  });
}

int64_t PeakBytes(const v1::Plan& plan) {
  return LargestPeak(
      plan.ranks(), [](const v1::RankPlan& rank) { return rank.peak_bytes(); });
}

ProgressStep ToProgressStep(const v1::Step& step) {
  return {.step = step.step(),
          .loss = step.loss(),
          .tokens = step.tokens(),
          .duration_seconds = step.duration_seconds(),
          .peak_bytes = PeakBytes(step),
          .model_flops = step.model_flops(),
          .recompute_flops = step.recompute_flops()};
}

double RecomputeShare(double model_flops, double recompute_flops) {
  const double all = model_flops + recompute_flops;
  return all > 0 ? recompute_flops / all : 0;
}

std::string SwitchText(const v1::PolicySwitch& policy_switch) {
  const v1::PolicyCost& before = policy_switch.before();
  const v1::PolicyCost& after = policy_switch.after();
  const auto label = [](const v1::PolicyCost& cost) {
    return cost.group() > 1
               ? absl::StrCat(cost.policy(), " (group ", cost.group(), ")")
               : cost.policy();
  };
  std::string text = absl::StrCat("policy ", label(before));
  if (label(before) != label(after)) {
    absl::StrAppend(&text, " to ", label(after));
  }
  const std::string message = OneLine(policy_switch.message(), 2000);
  const std::string why = message.empty() ? "" : absl::StrCat(": ", message);
  switch (policy_switch.state()) {
    case v1::PolicySwitch::STATE_REFUSED:
      return absl::StrCat(text, " NOT taken, the job goes on as before", why);
    case v1::PolicySwitch::STATE_SUPERSEDED:
      return absl::StrCat(text,
                          " never came into force: a later switch came first");
    case v1::PolicySwitch::STATE_DONE:
      absl::StrAppend(&text, " from step ", policy_switch.step(), " on");
      break;
    default:
      absl::StrAppend(&text, " ordered for ",
                      policy_switch.next_run() ? std::string("the next attempt")
                      : policy_switch.at_step() > 0
                          ? absl::StrCat("step ", policy_switch.at_step())
                          : std::string("the next step"));
  }
  const auto add = [&](absl::string_view what, int64_t old_bytes,
                       int64_t new_bytes) {
    absl::StrAppend(&text, what, FormatBytes(old_bytes));
    if (new_bytes != old_bytes) {
      absl::StrAppend(&text, " to ", FormatBytes(new_bytes));
    }
  };
  add(": peak ", before.peak_bytes(), after.peak_bytes());
  add(", budget ", before.budget_bytes(), after.budget_bytes());
  if (policy_switch.cause() == v1::PolicySwitch::CAUSE_OUT_OF_MEMORY) {
    absl::StrAppend(&text, ": OUT OF MEMORY");
  }
  return absl::StrCat(text, why);
}

std::string EndText(const v1::Job& job) {
  std::string text = absl::StrCat(job.id(), " ", StateWord(job));
  if (job.has_start_time() && job.has_end_time()) {
    absl::StrAppend(
        &text, " after ",
        DurationText(ToTime(job.end_time()) - ToTime(job.start_time())));
  }
  absl::StrAppend(&text, ": step ", job.last_step(), "/", job.spec().steps());
  if (job.last_step() > 0) {
    absl::StrAppend(&text, ", loss ", FormatLoss(job.last_loss()));
  }
  if (job.state() == v1::STATE_FAILED) {
    absl::StrAppend(&text, ": ", ReasonWord(job), ": ",
                    MessageLines(job).front(), " (`ebb logs ", job.id(),
                    "` shows what the ranks said)");
  } else if (job.has_warning()) {
    absl::StrAppend(&text,
                    ": WARNING: ", OneLine(job.warning().message(), 2000));
  }
  return text;
}

std::vector<std::string> MessageLines(const v1::Job& job) {
  std::vector<std::string> lines;
  for (const absl::string_view line :
       absl::StrSplit(job.message(), '\n', absl::SkipWhitespace())) {
    lines.push_back(OneLine(line, 2000));
  }
  if (lines.empty()) lines.emplace_back();
  return lines;
}

int JobExitCode(const v1::Job& job) {
  switch (job.state()) {
    case v1::STATE_SUCCEEDED:
      return kExitOk;
    case v1::STATE_FAILED:
      return kExitJobFailed;
    case v1::STATE_CANCELLED:
      return kExitJobCancelled;
    default:
      EBB_CHECK(false);
      return kExitInternal;
  }
}

}  // namespace ebb
