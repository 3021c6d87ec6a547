// From events to series.
#include "server/exporter.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/job_state.h"
#include "worker/program/memory_class.h"

namespace ebb {
namespace {

// The label values that a step may bring; others are not exported.
constexpr const char* kPhases[] = {"forward",      "recompute", "backward",
                                   "optimizer",    "comm_wait", "data_wait",
                                   "offload_wait", "checkpoint"};
constexpr const char* kVisibilities[] = {"hidden", "exposed"};
constexpr const char* kFlopKinds[] = {"model", "recompute"};
constexpr const char* kDirections[] = {"to_host", "from_host", "to_disk",
                                       "from_disk"};
constexpr const char* kMemoryPhases[] = {"start", "switch"};
constexpr const char* kStoreOperations[] = {
    "apply",     "delete",     "get_job",     "get_plans", "list_jobs",
    "live_jobs", "count_jobs", "get_request", "events",    "steps"};
// gRPC's names of the canonical codes, by number.
constexpr const char* kCodes[] = {"OK",
                                  "CANCELLED",
                                  "UNKNOWN",
                                  "INVALID_ARGUMENT",
                                  "DEADLINE_EXCEEDED",
                                  "NOT_FOUND",
                                  "ALREADY_EXISTS",
                                  "PERMISSION_DENIED",
                                  "RESOURCE_EXHAUSTED",
                                  "FAILED_PRECONDITION",
                                  "ABORTED",
                                  "OUT_OF_RANGE",
                                  "UNIMPLEMENTED",
                                  "INTERNAL",
                                  "UNAVAILABLE",
                                  "DATA_LOSS",
                                  "UNAUTHENTICATED"};

// Names stand here alone: the catalogue's class names, without linking the
// pure half's library for ten words.
constexpr const char* kCategories[] = {
    "parameters", "gradients", "optimizer",     "saved",   "live",
    "recompute",  "workspace", "communication", "runtime", "fragmentation"};
static_assert(std::size(kCategories) == kNumMemoryClasses);

constexpr const char* kEncodeErrors[] = {"ebb_train_encode_relative_error",
                                         "ebb_train_encode_largest_error"};

std::string CodeLabel(absl::StatusCode code) {
  const size_t number = static_cast<size_t>(code);
  return number < std::size(kCodes) ? kCodes[number] : "UNKNOWN";
}

std::string ModelLabel(const v1::ModelSpec& model) {
  return model.preset().empty() ? "custom" : model.preset();
}

// "L*.mlp.act.y" -> "mlp.act.y": the same in all layers.
std::string ValueLabel(const std::string& value) {
  return std::string(absl::StripPrefix(value, "L*."));
}

}  // namespace

Exporter::Exporter(MetricTable* table, const Clock* clock)
    : table_(table), clock_(clock) {
  for (const v1::State state : AllStates()) {
    table_->Set("ebb_jobs", {StateLabel(state)}, 0);
  }
  for (const Transition& transition : Transitions()) {
    table_->Add("ebb_job_transitions_total",
                {StateLabel(transition.from), StateLabel(transition.to)}, 0);
    if (IsFinal(transition.to)) {
      table_->Add("ebb_jobs_finished_total",
                  {StateLabel(transition.to), ReasonLabel(transition.reason)},
                  0);
    }
  }
  for (const char* kind : kFlopKinds) {
    table_->Add("ebb_floating_point_operations_total", {kind}, 0);
  }
  table_->Add("ebb_policy_switches_total", {}, 0);
  for (const char* operation : {"launch", "adopt", "terminate", "kill"}) {
    for (const char* result : {"ok", "error"}) {
      table_->Add("ebb_launcher_operations_total",
                  {"process", operation, result}, 0);
    }
  }
  for (const char* operation : kStoreOperations) {
    // A sample that is not a number makes the series and counts nothing.
    table_->Observe("ebb_store_operation_duration_seconds", {operation}, -1);
  }
}

void Exporter::SetBuild(absl::string_view version, absl::string_view revision) {
  table_->Set("ebb_build_info",
              {std::string(version), std::string(revision), "none", "none"}, 1);
}

void Exporter::SetDeviceMemory(absl::string_view device, int64_t bytes) {
  table_->Set("ebb_device_memory_capacity_bytes", {std::string(device)},
              static_cast<double>(bytes));
}

void Exporter::SetStoreSize(int64_t bytes) {
  table_->Set("ebb_store_size_bytes", {}, static_cast<double>(bytes));
}

void Exporter::SetJobCounts(const std::vector<int64_t>& counts) {
  absl::MutexLock lock(&mutex_);
  counts_ = counts;
  counts_.resize(v1::State_ARRAYSIZE, 0);
  for (const v1::State state : AllStates()) {
    table_->Set("ebb_jobs", {StateLabel(state)},
                static_cast<double>(counts_[state]));
  }
}

void Exporter::CountJob(v1::State state, int64_t change) {
  if (state == v1::STATE_UNSPECIFIED) return;
  absl::MutexLock lock(&mutex_);
  counts_.resize(v1::State_ARRAYSIZE, 0);
  counts_[state] += change;
  table_->Set("ebb_jobs", {StateLabel(state)},
              static_cast<double>(counts_[state]));
}

void Exporter::JobChanged(v1::State from, const v1::Job& job) {
  if (from != job.state()) {
    CountJob(from, -1);
    CountJob(job.state(), 1);
  }
  table_->Add("ebb_job_transitions_total",
              {StateLabel(from), StateLabel(job.state())}, 1);
  if (IsFinal(job.state())) {
    table_->Add("ebb_jobs_finished_total",
                {StateLabel(job.state()), ReasonLabel(job.reason())}, 1);
  }
}

void Exporter::TransitionRefused(v1::State from, v1::State to) {
  table_->Add("ebb_job_transitions_total", {StateLabel(from), StateLabel(to)},
              1);
}

void Exporter::JobDeleted(v1::State state) { CountJob(state, -1); }

void Exporter::QueueWaited(absl::Duration wait) {
  table_->Observe("ebb_job_queue_wait_seconds", {},
                  absl::ToDoubleSeconds(wait));
}

void Exporter::StartTook(absl::Duration latency) {
  table_->Observe("ebb_job_start_latency_seconds", {},
                  absl::ToDoubleSeconds(latency));
}

void Exporter::CancelTook(absl::Duration duration) {
  table_->Observe("ebb_job_cancel_duration_seconds", {},
                  absl::ToDoubleSeconds(duration));
}

void Exporter::AttemptStarted(const v1::Job& job, int num_ranks) {
  const std::string& id = job.id();
  {
    absl::MutexLock lock(&mutex_);
    leaving_.erase(id);
  }
  SetPlan(job, num_ranks);
  for (const char* counter :
       {"ebb_train_steps_total", "ebb_train_tokens_total",
        "ebb_train_skipped_steps_total", "ebb_train_policy_switches_total"}) {
    table_->Add(counter, {id}, 0);
  }
  for (const char* phase : kPhases) {
    table_->Add("ebb_train_phase_seconds_total", {id, phase}, 0);
  }
  for (const char* visibility : kVisibilities) {
    table_->Add("ebb_train_recompute_seconds_total", {id, visibility}, 0);
  }
  for (const char* kind : kFlopKinds) {
    table_->Add("ebb_train_floating_point_operations_total", {id, kind}, 0);
  }
  for (const char* direction : kDirections) {
    table_->Add("ebb_train_offload_bytes_total", {id, direction}, 0);
  }
  table_->Observe("ebb_train_step_duration_seconds", {id}, -1);
  for (const char* phase : kMemoryPhases) {
    OutOfMemory(id, phase, 0, 0);
  }
  table_->Set("ebb_train_step", {id}, static_cast<double>(job.last_step()));
  table_->Set("ebb_train_planned_steps", {id},
              static_cast<double>(job.spec().steps()));
}

void Exporter::SetPlan(const v1::Job& job, int num_ranks) {
  const std::string& id = job.id();
  table_->Replace("ebb_job_info", "job_id", id,
                  {id, job.name(), ModelLabel(job.spec().model()),
                   job.plan().policy(), absl::StrCat(job.attempt())});
  table_->Set("ebb_train_predicted_step_seconds", {id},
              job.plan().step_seconds());
  for (const v1::RankPlan& plan : job.plan().ranks()) {
    if (plan.rank() < 0 || plan.rank() >= num_ranks) continue;
    const std::string rank = absl::StrCat(plan.rank());
    table_->Set("ebb_train_memory_budget_bytes", {id, rank},
                static_cast<double>(job.plan().budget_bytes()));
    for (const char* category : kCategories) {
      const auto bytes = plan.memory().find(category);
      table_->Set("ebb_train_predicted_memory_peak_bytes", {id, rank, category},
                  bytes == plan.memory().end()
                      ? 0
                      : static_cast<double>(bytes->second));
    }
  }
}

void Exporter::PolicySwitched(const std::string& job_id, int64_t count,
                              bool replayed) {
  const double switches = static_cast<double>(count);
  table_->Add("ebb_train_policy_switches_total", {job_id}, switches);
  if (!replayed) table_->Add("ebb_policy_switches_total", {}, switches);
}

void Exporter::OutOfMemory(const std::string& job_id, absl::string_view phase,
                           int64_t count, int64_t retries) {
  const std::vector<std::string> labels = {job_id, std::string(phase)};
  table_->Add("ebb_train_out_of_memory_total", labels,
              static_cast<double>(count));
  table_->Add("ebb_train_allocation_retries_total", labels,
              static_cast<double>(retries));
}

void Exporter::StepStored(const std::string& job_id, int rank,
                          const v1::Step& step, bool replayed) {
  for (const v1::RankStep& part : step.ranks()) {
    const std::string label = absl::StrCat(part.rank());
    for (const char* category : kCategories) {
      const auto bytes = part.memory().find(category);
      table_->Set("ebb_train_step_memory_peak_bytes", {job_id, label, category},
                  bytes == part.memory().end()
                      ? 0
                      : static_cast<double>(bytes->second.peak_bytes()));
    }
    table_->Set("ebb_train_host_memory_bytes", {job_id, label},
                static_cast<double>(part.host_bytes()));
    table_->Set("ebb_train_disk_bytes", {job_id, label},
                static_cast<double>(part.disk_bytes()));
    for (const char* direction : kDirections) {
      const auto bytes = part.copied_bytes().find(direction);
      if (bytes == part.copied_bytes().end()) continue;
      table_->Add("ebb_train_offload_bytes_total", {job_id, direction},
                  static_cast<double>(bytes->second));
    }
    // After a switch other values are encoded, or none.
    for (const char* family : kEncodeErrors) {
      table_->RemoveFrom(family, {job_id, label});
    }
    for (const v1::EncodeError& error : part.encode_errors()) {
      const MetricTable::Labels labels = {job_id, label,
                                          ValueLabel(error.value())};
      table_->Set(kEncodeErrors[0], labels, error.relative_error());
      table_->Set(kEncodeErrors[1], labels, error.largest_error());
    }
    table_->Set("ebb_train_last_step_timestamp_seconds", {job_id, label},
                static_cast<double>(step.time().seconds()) +
                    1e-9 * step.time().nanos());
  }
  // Loss, tokens and FLOPs are of the whole step: one rank speaks for all.
  if (rank != 0) return;
  const std::vector<std::string> job = {job_id};
  table_->Add("ebb_train_steps_total", job, 1);
  table_->Add("ebb_train_tokens_total", job,
              static_cast<double>(step.tokens()));
  if (step.skipped()) table_->Add("ebb_train_skipped_steps_total", job, 1);
  table_->Add("ebb_train_floating_point_operations_total", {job_id, "model"},
              step.model_flops());
  table_->Add("ebb_train_floating_point_operations_total",
              {job_id, "recompute"}, step.recompute_flops());
  table_->Observe("ebb_train_step_duration_seconds", job,
                  step.duration_seconds());
  for (const char* phase : kPhases) {
    const auto seconds = step.phase_seconds().find(phase);
    if (seconds == step.phase_seconds().end()) continue;
    table_->Add("ebb_train_phase_seconds_total", {job_id, phase},
                seconds->second);
  }
  // One stream computes: nothing hides behind anything.
  if (const auto seconds = step.phase_seconds().find("recompute");
      seconds != step.phase_seconds().end()) {
    table_->Add("ebb_train_recompute_seconds_total", {job_id, "exposed"},
                seconds->second);
  }
  table_->Set("ebb_train_step", job, static_cast<double>(step.step()));
  table_->Set("ebb_train_loss", job, step.loss());
  table_->Set("ebb_train_gradient_norm", job, step.gradient_norm());
  table_->Set("ebb_train_learning_rate", job, step.learning_rate());
  if (replayed) return;
  table_->Add("ebb_steps_total", {}, 1);
  table_->Add("ebb_tokens_total", {}, static_cast<double>(step.tokens()));
  table_->Add("ebb_floating_point_operations_total", {"model"},
              step.model_flops());
  table_->Add("ebb_floating_point_operations_total", {"recompute"},
              step.recompute_flops());
}

void Exporter::Heard(const std::string& job_id, int rank) {
  table_->Set("ebb_worker_last_heartbeat_timestamp_seconds",
              {job_id, absl::StrCat(rank)},
              absl::ToDoubleSeconds(clock_->Now() - absl::UnixEpoch()));
}

void Exporter::JobEnded(const std::string& job_id) {
  absl::MutexLock lock(&mutex_);
  leaving_[job_id] = clock_->Monotonic() + kSeriesLinger;
}

void Exporter::Expire() {
  std::vector<std::string> gone;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_->Monotonic();
    for (const auto& [id, time] : leaving_) {
      if (time <= now) gone.push_back(id);
    }
    for (const std::string& id : gone) leaving_.erase(id);
  }
  for (const std::string& id : gone) table_->Remove("job_id", id);
}

bool Exporter::HasLeaving() {
  absl::MutexLock lock(&mutex_);
  return !leaving_.empty();
}

void Exporter::LauncherOperation(const char* launcher, const char* operation,
                                 bool ok) {
  table_->Add("ebb_launcher_operations_total",
              {launcher, operation, ok ? "ok" : "error"}, 1);
}

void Exporter::StoreOperation(const char* operation, absl::Duration duration) {
  table_->Observe("ebb_store_operation_duration_seconds", {operation},
                  absl::ToDoubleSeconds(duration));
}

void Exporter::RpcKnown(const char* type, const char* service,
                        const char* method) {
  table_->Add("grpc_server_started_total", {type, service, method}, 0);
  for (const char* code : kCodes) {
    table_->Add("grpc_server_handled_total", {type, service, method, code}, 0);
  }
  table_->Observe("grpc_server_handling_seconds", {type, service, method}, -1);
}

absl::Duration Exporter::RpcStarted(const char* type, const char* service,
                                    const char* method) {
  table_->Add("grpc_server_started_total", {type, service, method}, 1);
  return clock_->Monotonic();
}

void Exporter::RpcHandled(const char* type, const char* service,
                          const char* method, absl::StatusCode code,
                          absl::Duration start) {
  table_->Add("grpc_server_handled_total",
              {type, service, method, CodeLabel(code)}, 1);
  table_->Observe("grpc_server_handling_seconds", {type, service, method},
                  absl::ToDoubleSeconds(clock_->Monotonic() - start));
}

}  // namespace ebb
