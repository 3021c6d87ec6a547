// `ebb describe`: one job, for people.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/commands.h"
#include "client/commands/job_lookup.h"
#include "client/commands/job_text.h"
#include "client/commands/plan_text.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/format.h"
#include "client/job_client.h"
#include "client/output.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/json_output.h"
#include "proto/violations.h"

namespace ebb {
namespace {

constexpr int64_t kNumLastSteps = 5;

std::string ModelText(const v1::JobSpec& spec) {
  // Enum words come as the spec's language has them.
  const nlohmann::ordered_json json = ToJson(spec);
  const v1::ModelSpec& model = spec.model();
  return absl::StrCat(
      model.preset().empty() ? "" : absl::StrCat(OneLine(model.preset()), ", "),
      model.layers(), " layers, hidden ", model.hidden(), ", heads ",
      model.heads(), ", ffn ", model.ffn(), ", vocab ", model.vocab(),
      ", seq_len ", model.seq_len(), ", ",
      json.value("/model/attention"_json_pointer, ""), " attention, dropout ",
      model.dropout(), ", ", json.value("precision", ""));
}

// That training is not exact; empty: it is.
std::string EncodingText(const v1::Job& job) {
  for (const v1::Decision& decision : job.plan().decisions()) {
    if (decision.encode_format().empty()) continue;
    return absl::StrCat(
        decision.encode_format(),
        ", lossy: gradients and weights are not those of an exact run");
  }
  return job.lossy() ? "none now, but earlier steps were lossy: weights are "
                       "not those of an exact run"
                     : "";
}

// What encoding loses, of the rank that loses most; empty: nothing is encoded.
std::string EncodeErrorText(const v1::Step& step) {
  std::map<std::string, v1::EncodeError> largest;
  for (const v1::RankStep& rank : step.ranks()) {
    for (const v1::EncodeError& error : rank.encode_errors()) {
      v1::EncodeError& own = largest[error.value()];
      own.set_relative_error(
          std::max(own.relative_error(), error.relative_error()));
      own.set_largest_error(
          std::max(own.largest_error(), error.largest_error()));
    }
  }
  if (largest.empty()) return "";
  Table table({{"VALUE"}, {"RELATIVE", true}, {"LARGEST", true}});
  for (const auto& [value, error] : largest) {
    table.AddRow({OneLine(value, 200),
                  absl::StrFormat("%.3g %%", 100 * error.relative_error()),
                  absl::StrFormat("%.3g", error.largest_error())});
  }
  return absl::StrCat(
      "\nwhat encoding lost in step ", step.step(),
      " (root mean square relative to the value, and of any element):\n",
      table.Render(2));
}

std::string DescribeText(const v1::Job& job, const std::vector<v1::Step>& steps,
                         absl::TimeZone zone) {
  const v1::JobSpec& spec = job.spec();
  std::string text;
  const auto add = [&](absl::string_view name, absl::string_view value) {
    if (!value.empty()) absl::StrAppendFormat(&text, "%-11s %s\n", name, value);
  };
  const auto add_time = [&](absl::string_view name, absl::Time time) {
    if (time != absl::InfinitePast()) add(name, TimeText(time, zone));
  };
  add("id", job.id());
  add("name", OneLine(job.name(), 200));
  const std::string reason = ReasonWord(job);
  const std::vector<std::string> message = MessageLines(job);
  add("state",
      absl::StrCat(StateWord(job), reason.empty() ? "" : ": ", reason,
                   job.message().empty() ? "" : ": ", message.front()));
  for (size_t n = 1; n < message.size(); ++n) {
    add(n == 1 ? "last log" : "", message[n]);
  }
  add("warning", OneLine(job.warning().message(), 2000));
  if (job.attempt() > 0) add("attempt", absl::StrCat(job.attempt()));
  add_time("created", ToTime(job.create_time()));
  add_time("started", ToTime(job.start_time()));
  add_time("ended", ToTime(job.end_time()));
  add("directory", OneLine(job.directory(), 4096));
  add("model", ModelText(spec));
  add("data",
      absl::StrCat(OneLine(spec.data().train(), 4096),
                   spec.data().validation().empty() ? "" : ", validation ",
                   OneLine(spec.data().validation(), 4096)));
  add("init_from", OneLine(spec.checkpoint().init_from(), 4096));
  add("batch", absl::StrCat(spec.batch().global(), " sequences a step, ",
                            spec.batch().micro(), " a microbatch"));
  add("optimizer",
      absl::StrFormat("adamw, lr %g, warmup %d, weight_decay %g, clip %g",
                      spec.optimizer().lr(), spec.lr_schedule().warmup(),
                      spec.optimizer().weight_decay(),
                      spec.optimizer().clip()));
  add("progress",
      absl::StrCat("step ", job.last_step(), " of ", spec.steps(),
                   job.last_step() > 0
                       ? absl::StrCat(", loss ", FormatLoss(job.last_loss()))
                       : ""));
  if (job.last_eval().step() > 0) {
    add("evaluation", absl::StrCat("loss ", FormatLoss(job.last_eval().loss()),
                                   " at step ", job.last_eval().step()));
  }
  if (job.checkpoint_step() > 0) {
    add("checkpoint", absl::StrCat("step ", job.checkpoint_step(), ": ",
                                   OneLine(job.checkpoint_directory(), 4096)));
  }
  if (job.weights_hash() != 0) {
    add("weights", absl::StrFormat("hash %016x", job.weights_hash()));
  }
  const v1::Plan& plan = job.plan();
  add("plan", absl::StrCat("policy ", plan.policy(), ", budget ",
                           FormatExactBytes(plan.budget_bytes()), ", model ",
                           FormatFlops(plan.model_flops()), " and recompute ",
                           FormatFlops(plan.recompute_flops()),
                           " a step (attention as full square)"));
  add("encoding", EncodingText(job));
  if (job.has_last_switch()) add("switch", SwitchText(job.last_switch()));
  for (const v1::PolicySwitch& pending : job.pending_switches()) {
    add("switch", absl::StrCat(SwitchText(pending),
                               IsFinal(job) ? ": the job ended first" : ""));
  }
  absl::StrAppend(
      &text,
      steps.empty()
          ? "\npredicted memory at the peak of a step:\n"
          : absl::StrCat("\nmemory at the peak of a step, predicted and as "
                         "measured in step ",
                         steps.back().step(), ":\n"),
      PlanMemoryText(plan, steps.empty() ? nullptr : &steps.back()));
  if (!steps.empty()) {
    text += EncodeErrorText(steps.back());
    Table table = StepTable();
    for (const v1::Step& step : steps) table.AddRow(StepRow(step));
    absl::StrAppend(&text,
                    "\nlast steps (recompute: share of all FLOPs, attention as "
                    "full square):\n",
                    table.Render());
  }
  return text;
}

}  // namespace

absl::StatusOr<int> RunDescribe(const CommandContext& context,
                                const std::string& job_id) {
  Environment& environment = context.environment;
  EBB_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobClient> client,
      ConnectToCoordinator(environment, context.server, context.timing));
  const absl::StatusOr<v1::Job> job = client->GetJob(job_id);
  if (!job.ok()) return SuggestJob(job.status(), job_id, *client);
  std::vector<v1::Step> steps;
  EBB_RETURN_IF_ERROR(client->ListSteps(
      job_id, std::max<int64_t>(0, job->last_step() - kNumLastSteps),
      [&](const v1::Step& step) { steps.push_back(step); }));
  if (context.output == OutputFormat::kTable) {
    *environment.out << DescribeText(*job, steps, environment.zone);
    return kExitOk;
  }
  nlohmann::ordered_json json = ToJson(*job);
  json["last_steps"] = nlohmann::ordered_json::array();
  for (const v1::Step& step : steps) json["last_steps"].push_back(ToJson(step));
  *environment.out << WriteJson(json, context.output);
  return kExitOk;
}

}  // namespace ebb
