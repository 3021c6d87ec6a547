// What the coordinator has in memory of a job in no final state, and of its
// ranks. All of it is guarded by the coordinator's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/job_plans.pb.h"
#include "proto/job_service.pb.h"
#include "proto/worker_service.pb.h"
#include "server/coordinator.h"
#include "server/launcher.h"

namespace ebb {

// Of the job's newest attempt.
std::string AttemptDirectory(const v1::Job& job);

void SetTime(absl::Time time, google::protobuf::Timestamp* timestamp);

// What a worker says as it may stand in a job's message: cut to a page.
std::string CutMessage(absl::string_view text);

struct Coordinator::LiveRank {
  std::shared_ptr<WorkerConnection> connection;
  bool order_sent = false;  // on this connection
  bool started = false;
  bool stepped = false;
  int64_t stored_sequence = 0;
  int64_t received_sequence = 0;  // stored ones and those in pending_
  std::optional<v1::Finished> finished;
};

struct Coordinator::LiveJob {
  int64_t number = 0;
  v1::Job job;
  v1::JobPlans plans;
  int64_t last_event = 0;
  std::vector<LiveRank> ranks;
  // Monotonic times; of this process.
  absl::Duration queue_time;
  absl::Duration launch_time;
  absl::Duration cancel_time;
  std::optional<absl::Duration> end_time;
  std::optional<absl::Duration> finished_time;
  bool cancel_now = false;
  std::string launch_error;
  std::optional<StopSignal> last_signal;
  absl::Duration last_signal_time;
  bool left_reports_read = false;

  int num_ranks() const { return std::max(1, job.plan().ranks_size()); }
  int num_threads() const {
    return std::max(1, job.spec().resources().threads()) * num_ranks();
  }
  // By the plan: a worker uses what its plan says, however large the budget. Of
  // the largest plan that may come into force.
  int64_t bytes() const {
    const auto bytes_of = [](const v1::Plan& plan) {
      int64_t sum = 0;
      for (const v1::RankPlan& rank : plan.ranks()) {
        // Workers run on the CPU: host memory comes on top of the same.
        sum += rank.peak_bytes() + rank.host_bytes();
      }
      return sum;
    };
    int64_t bytes = bytes_of(job.plan());
    for (const v1::PendingPlan& pending : plans.pending()) {
      bytes = std::max(bytes, bytes_of(pending.planned().plan()));
    }
    return bytes;
  }
  AttemptKey key() const {
    return {job.id(), job.attempt(), AttemptDirectory(job), num_ranks()};
  }
};

}  // namespace ebb
