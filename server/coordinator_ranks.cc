// What ranks say and are told: their streams, their reports until they are
// stored, and what is left when they are gone.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status.h"
#include "monitoring/log.h"
#include "proto/convert.h"
#include "proto/report_file.h"
#include "server/coordinator.h"
#include "server/job_state.h"
#include "server/live_job.h"
#include "server/policy_switch.h"
#include "server/training_warning.h"

namespace ebb {
namespace {

// Reports that wait for the store; beyond it workers are sent away and come
// back.
constexpr size_t kMaxPending = 10000;

// A worker's backend against the plan's: what decides bits must agree; probed
// bytes may differ by a page.
std::string BackendDifference(const v1::Backend& planned,
                              const v1::Backend& found) {
  std::vector<std::string> parts;
  const auto compare = [&](const char* what, const auto& a, const auto& b) {
    if (a != b) {
      parts.push_back(absl::StrCat(what, " is ", b, ", the plan is for ", a));
    }
  };
  compare("kind", planned.kind(), found.kind());
  compare("device_model", planned.device_model(), found.device_model());
  compare("instruction_set", planned.instruction_set(),
          found.instruction_set());
  compare("threads", planned.threads(), found.threads());
  compare("libraries", planned.libraries(), found.libraries());
  return absl::StrJoin(parts, "; ");
}

}  // namespace

absl::Status Coordinator::Connect(
    const v1::WorkerMessage& first,
    std::shared_ptr<WorkerConnection> connection) {
  if (!first.has_register_()) {
    return absl::InvalidArgumentError(
        "the first message of a worker must be `register`");
  }
  absl::MutexLock lock(&mutex_);
  const auto found = live_.find(first.job_id());
  if (found == live_.end()) {
    v1::GetJobRequest get;
    get.set_id(first.job_id());
    EBB_ASSIGN_OR_RETURN(const v1::Job job, GetJob(get));
    return absl::FailedPreconditionError(absl::StrCat(
        "the job has ended: ", StateLabel(job.state()), ": job ", job.id()));
  }
  LiveJob& live = *found->second;
  if (!HasAttempt(live.job.state()) || first.attempt() != live.job.attempt()) {
    return absl::FailedPreconditionError(
        absl::StrCat("attempt ", first.attempt(), " is not the current one, ",
                     live.job.attempt(), ": job ", live.job.id()));
  }
  if (first.rank() < 0 || first.rank() >= live.num_ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", first.rank(), " is not one of ", live.num_ranks(),
                     ": job ", live.job.id()));
  }
  // A fresh rank learns its number of threads from the assignment and then
  // compares the machine itself; one that comes back says what it found.
  const std::string difference =
      first.register_().has_backend()
          ? BackendDifference(live.job.plan().backend(),
                              first.register_().backend())
          : "";
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the worker's backend is not the plan's: ", difference,
                     ": rank ", first.rank(), ": job ", live.job.id()));
  }
  LiveRank& rank = live.ranks[first.rank()];
  const bool resumed = first.register_().resumed();
  if (!resumed && rank.received_sequence > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the rank has reported already and cannot start afresh: rank ",
        first.rank(), ": job ", live.job.id()));
  }
  if (rank.connection != nullptr) {
    rank.connection->Close(absl::AbortedError("the rank has connected again"));
  }
  rank.connection = std::move(connection);
  rank.order_sent = false;
  v1::CoordinatorMessage answer;
  if (resumed) {
    rank.started = true;
    answer.mutable_acknowledge()->set_sequence(rank.stored_sequence);
  } else {
    v1::Assignment& assignment = *answer.mutable_assignment();
    *assignment.mutable_spec() = live.job.spec();
    *assignment.mutable_plan() = PlanForRank(live.job.plan());
    for (const v1::PlannedMemory& rung : live.plans.ladder()) {
      *assignment.add_ladder() = PlanForRank(rung.plan());
    }
    assignment.set_directory(live.job.directory());
    assignment.set_poison(options_.poison);
  }
  rank.connection->Send(std::move(answer));
  SendSwitches(live, rank);
  parts_.exporter->Heard(live.job.id(), first.rank());
  Wake();
  return absl::OkStatus();
}

void Coordinator::SendSwitches(const LiveJob& live, const LiveRank& rank) {
  if (rank.connection == nullptr) return;
  for (int n = 0; n < live.plans.pending_size(); ++n) {
    const v1::PendingPlan& pending = live.plans.pending(n);
    const v1::PolicySwitch& waiting = live.job.pending_switches(n);
    if (waiting.next_run()) continue;
    v1::CoordinatorMessage message;
    message.mutable_order()->set_kind(v1::Order::KIND_SWITCH);
    v1::SwitchOrder& order = *message.mutable_order()->mutable_switch_order();
    order.set_number(pending.number());
    *order.mutable_plan() = PlanForRank(pending.planned().plan());
    for (const v1::PlannedMemory& rung : pending.ladder()) {
      *order.add_ladder() = PlanForRank(rung.plan());
    }
    order.set_at_step(waiting.at_step());
    order.set_offload_dir(pending.planned().memory().offload_dir());
    rank.connection->Send(std::move(message));
  }
}

void Coordinator::Disconnect(const v1::WorkerMessage& first,
                             const WorkerConnection* connection) {
  absl::MutexLock lock(&mutex_);
  const auto found = live_.find(first.job_id());
  if (found == live_.end()) return;
  for (LiveRank& rank : found->second->ranks) {
    if (rank.connection.get() == connection) rank.connection = nullptr;
  }
  Wake();
}

absl::Status Coordinator::Receive(const v1::WorkerMessage& message,
                                  const WorkerConnection* connection) {
  absl::MutexLock lock(&mutex_);
  const auto found = live_.find(message.job_id());
  if (found == live_.end()) {
    return absl::FailedPreconditionError("the job has ended");
  }
  LiveJob& live = *found->second;
  if (message.attempt() != live.job.attempt() || message.rank() < 0 ||
      message.rank() >= live.num_ranks() ||
      live.ranks[message.rank()].connection.get() != connection) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the message is not of the connected rank: rank ", message.rank(),
        ": attempt ", message.attempt(), ": job ", live.job.id()));
  }
  if (pending_.size() >= kMaxPending) {
    return absl::UnavailableError("the store is behind: connect again later");
  }
  parts_.exporter->Heard(live.job.id(), message.rank());
  return Annotate(
      ReceiveLocked(live, message),
      absl::StrCat("rank ", message.rank(), ": job ", live.job.id()));
}

absl::Status Coordinator::ReceiveLocked(LiveJob& live,
                                        const v1::WorkerMessage& message) {
  LiveRank& rank = live.ranks[message.rank()];
  switch (message.message_case()) {
    case v1::WorkerMessage::kStarted:
      rank.started = true;
      for (const std::string& difference :
           message.started().plan_differences()) {
        EBB_LOG(WARNING) << "job " << live.job.id() << " rank "
                         << message.rank()
                         << ": plan and program differ: " << difference;
      }
      pending_.push_back(message);
      Wake();
      return absl::OkStatus();
    case v1::WorkerMessage::kReport:
    case v1::WorkerMessage::kFinished:
      break;
    default:
      return absl::InvalidArgumentError("the message holds no report");
  }
  if (message.sequence() <= rank.received_sequence) {
    // Sent again. What is still pending is acknowledged when it is stored.
    if (message.sequence() <= rank.stored_sequence &&
        rank.connection != nullptr) {
      v1::CoordinatorMessage answer;
      answer.mutable_acknowledge()->set_sequence(rank.stored_sequence);
      rank.connection->Send(std::move(answer));
    }
    return absl::OkStatus();
  }
  if (message.sequence() != rank.received_sequence + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("report ", message.sequence(), " came where report ",
                     rank.received_sequence + 1, " was due"));
  }
  v1::WorkerMessage report = message;
  if (report.has_report()) {
    switch (report.report().report_case()) {
      case v1::RankReport::kStep: {
        v1::Step& step = *report.mutable_report()->mutable_step();
        if (step.ranks_size() != 1 || step.step() < 1 ||
            step.step() > live.job.spec().steps()) {
          return absl::InvalidArgumentError(
              absl::StrCat("a step report needs one rank and a step of 1 to ",
                           live.job.spec().steps(), ": step ", step.step(),
                           " of ", step.ranks_size(), " ranks"));
        }
        step.set_attempt(report.attempt());
        step.mutable_ranks(0)->set_rank(report.rank());
        if (!step.has_time()) {
          SetTime(parts_.clock->Now(), step.mutable_time());
        }
        break;
      }
      case v1::RankReport::kEval:
        report.mutable_report()->mutable_eval()->set_attempt(report.attempt());
        break;
      case v1::RankReport::kCheckpoint:
        report.mutable_report()->mutable_checkpoint()->set_attempt(
            report.attempt());
        break;
      case v1::RankReport::kOpTimes:
        break;
      case v1::RankReport::kSwitched: {
        v1::Switched& switched = *report.mutable_report()->mutable_switched();
        switched.set_message(CutMessage(switched.message()));
        // People wait for it.
        Wake();
        break;
      }
      default:
        return absl::InvalidArgumentError("the report is empty");
    }
  } else {
    v1::Finished& finished = *report.mutable_finished();
    finished.set_message(CutMessage(finished.message()));
    // The end is worth a look at once.
    Wake();
  }
  rank.received_sequence = report.sequence();
  pending_.push_back(std::move(report));
  return absl::OkStatus();
}

absl::Status Coordinator::StoreReports() {
  if (pending_.empty()) return absl::OkStatus();
  Change change;
  std::map<std::string, v1::Job> jobs;        // as they will be
  std::map<std::string, v1::JobPlans> plans;  // of those that changed
  std::vector<std::pair<std::string, v1::Switched>> out_of_memory;  // by job
  std::map<std::string, int64_t> last_events;
  std::map<std::pair<std::string, int>, RankRow> rows;
  for (const v1::WorkerMessage& message : pending_) {
    const auto found = live_.find(message.job_id());
    if (found == live_.end() ||
        message.attempt() != found->second->job.attempt()) {
      continue;
    }
    LiveJob& live = *found->second;
    last_events.emplace(live.job.id(), live.last_event);
    v1::Job& job = jobs.try_emplace(live.job.id(), live.job).first->second;
    const LiveRank& rank = live.ranks[message.rank()];
    RankRow& row = rows[{live.job.id(), message.rank()}];
    if (row.job_id.empty()) {
      row = {live.job.id(),        message.attempt(), message.rank(),
             rank.stored_sequence, rank.started,      rank.stepped,
             rank.finished};
    }
    row.sequence = std::max(row.sequence, message.sequence());
    if (message.has_started()) row.started = true;
    if (message.has_finished()) {
      row.finished = message.finished();
      if (message.rank() == 0 && message.finished().code() == 0) {
        job.set_weights_hash(message.finished().weights_hash());
      }
    }
    if (!message.has_report()) continue;
    if (message.report().has_step()) {
      const v1::Step& step = message.report().step();
      row.stepped = true;
      change.steps.push_back({live.job.id(), message.rank(), step});
      for (const v1::RankStep& of_rank : step.ranks()) {
        if (!of_rank.encode_errors().empty()) job.set_lossy(true);
      }
      if (message.rank() == 0) {
        job.set_last_step(step.step());
        job.set_last_loss(step.loss());
        if (const auto warning = WarningOf(step, job); warning.has_value()) {
          EBB_LOG(WARNING) << "job " << live.job.id() << ": "
                           << warning->message();
          *job.mutable_warning() = *warning;
          v1::JobEvent event;
          *event.mutable_warning() = *warning;
          AddEvent(live, std::move(event), &change);
        }
      }
    } else if (message.report().has_eval() && message.rank() == 0) {
      const v1::EvalReport& eval = message.report().eval();
      change.evals.push_back({live.job.id(), eval});
      *job.mutable_last_eval() = eval;
      v1::JobEvent event;
      *event.mutable_eval() = eval;
      AddEvent(live, std::move(event), &change);
    } else if (message.report().has_checkpoint() && message.rank() == 0) {
      const v1::CheckpointReport& checkpoint = message.report().checkpoint();
      change.checkpoints.push_back({live.job.id(), checkpoint});
      if (checkpoint.error().empty()) {
        job.set_checkpoint_step(checkpoint.step());
        job.set_checkpoint_directory(checkpoint.directory());
      }
      v1::JobEvent event;
      *event.mutable_checkpoint() = checkpoint;
      AddEvent(live, std::move(event), &change);
    } else if (message.report().has_op_times() && message.rank() == 0) {
      const auto& seconds = message.report().op_times().seconds();
      parts_.keep_op_times(BackendFromMessage(job.plan().backend()),
                           {seconds.begin(), seconds.end()});
    } else if (message.report().has_switched()) {
      v1::JobPlans& of_job =
          plans.try_emplace(live.job.id(), live.plans).first->second;
      const v1::Switched& switched = message.report().switched();
      const auto ended = TakeAnswer(switched, message.rank(), live.num_ranks(),
                                    {&job, &of_job});
      if (switched.code() ==
          static_cast<int>(absl::StatusCode::kResourceExhausted)) {
        out_of_memory.push_back({live.job.id(), switched});
      }
      if (ended.ok()) {
        AddSwitchEvents(live, *ended, &change);
      } else {
        EBB_LOG(ERROR) << "job " << live.job.id() << " rank " << message.rank()
                       << ": " << ended.status().message();
      }
    }
  }
  for (const auto& [key, row] : rows) change.ranks.push_back(row);
  for (const auto& [id, job] : jobs) {
    (plans.count(id) > 0 ? change.replanned_jobs : change.jobs).push_back(job);
  }
  for (const auto& [id, of_job] : plans) change.plans.push_back({id, of_job});
  const absl::Status stored = parts_.store->Apply(change);
  store_failing_ = !stored.ok();
  if (!stored.ok()) {
    for (const auto& [id, sequence] : last_events) {
      live_.at(id)->last_event = sequence;
    }
    EBB_LOG(ERROR) << pending_.size()
                   << " reports are not stored yet: " << stored.message();
    return stored;
  }
  pending_.clear();
  for (auto& [id, of_job] : plans) {
    LiveJob& live = *live_.at(id);
    live.plans = std::move(of_job);
    parts_.exporter->SetPlan(jobs.at(id), live.num_ranks());
    parts_.exporter->PolicySwitched(
        id, jobs.at(id).num_switches() - live.job.num_switches(),
        /*replayed=*/false);
  }
  for (const auto& [id, switched] : out_of_memory) {
    const bool at_start = switched.number() == 0;
    // A switch falls back to the plan before it first.
    parts_.exporter->OutOfMemory(id, at_start ? "start" : "switch", 1,
                                 switched.rung() + (at_start ? 0 : 1));
  }
  for (auto& [id, job] : jobs) live_.at(id)->job = std::move(job);
  for (auto& [key, row] : rows) {
    LiveRank& rank = live_.at(key.first)->ranks[key.second];
    rank.stored_sequence = row.sequence;
    rank.started |= row.started;
    rank.stepped = row.stepped;
    rank.finished = std::move(row.finished);
    if (rank.connection != nullptr && row.sequence > 0) {
      v1::CoordinatorMessage answer;
      answer.mutable_acknowledge()->set_sequence(row.sequence);
      rank.connection->Send(std::move(answer));
    }
  }
  for (const StepRow& row : change.steps) {
    parts_.exporter->StepStored(row.job_id, row.rank, row.step,
                                /*replayed=*/false);
  }
  Changed();
  return absl::OkStatus();
}

void Coordinator::ReadLeftReports(LiveJob& live) {
  if (live.left_reports_read) return;
  live.left_reports_read = true;
  const AttemptKey key = live.key();
  for (int r = 0; r < live.num_ranks(); ++r) {
    const auto messages = ReadReportFile(ReportFilePath(key.directory, r));
    if (absl::IsNotFound(messages.status())) continue;
    absl::Status status = messages.status();
    if (messages.ok()) {
      for (const v1::WorkerMessage& message : *messages) {
        if (message.job_id() != live.job.id() || message.rank() != r ||
            message.attempt() != live.job.attempt()) {
          status = absl::DataLossError("a report is of another rank");
        } else {
          status = ReceiveLocked(live, message);
        }
        if (!status.ok()) break;
      }
    }
    if (!status.ok()) {
      EBB_LOG(ERROR) << "job " << live.job.id() << " rank " << r
                     << ": reports that it left: " << status.message();
    }
  }
}

}  // namespace ebb
