// All that the coordinator must not lose, in one SQLite file (WAL,
// synchronous=FULL). Every decision is one Change and one transaction: the new
// state and its event are there together or not at all. Schema: README.md.
//
// Thread-safe: one connection writes, another reads and never waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/job_plans.pb.h"
#include "proto/job_service.pb.h"
#include "proto/worker_service.pb.h"

namespace ebb {

// Version of the schema that this program writes. A file of a newer one is
// refused.
constexpr int kStoreSchemaVersion = 2;

// One step as one rank reported it.
struct StepRow {
  std::string job_id;
  int rank = 0;
  v1::Step step;
};

// How far the reports of one rank of one attempt are stored.
struct RankRow {
  std::string job_id;
  int attempt = 0;
  int rank = 0;
  // Reports up to this number are stored.
  int64_t sequence = 0;
  bool started = false;
  bool stepped = false;
  std::optional<v1::Finished> finished;
};

struct AttemptRow {
  std::string job_id;
  int attempt = 0;
  // Wall time of the launch.
  absl::Time launch_time;
  bool ended = false;
};

struct RequestRow {
  std::string request_id;
  std::string job_id;
  // The spec as the client sent it, serialized.
  std::string spec;
};

struct EventRow {
  std::string job_id;
  // `job` is stored without spec and plan.
  v1::JobEvent event;
};

struct EvalRow {
  std::string job_id;
  v1::EvalReport report;
};

struct CheckpointRow {
  std::string job_id;
  v1::CheckpointReport report;
};

struct PlansRow {
  std::string job_id;
  v1::JobPlans plans;
};

// What one decision writes.
struct Change {
  // Inserted with spec and plan.
  std::vector<v1::Job> new_jobs;
  // Updated; spec and plan stay as they are.
  std::vector<v1::Job> jobs;
  // Updated with spec and plan.
  std::vector<v1::Job> replanned_jobs;
  std::vector<PlansRow> plans;
  std::vector<RequestRow> requests;
  std::vector<AttemptRow> attempts;
  std::vector<RankRow> ranks;
  std::vector<StepRow> steps;
  std::vector<EvalRow> evals;
  std::vector<CheckpointRow> checkpoints;
  std::vector<EventRow> events;

  bool empty() const {
    return new_jobs.empty() && jobs.empty() && replanned_jobs.empty() &&
           plans.empty() && requests.empty() && attempts.empty() &&
           ranks.empty() && steps.empty() && evals.empty() &&
           checkpoints.empty() && events.empty();
  }
};

// A job with its place in the order of creation.
struct NumberedJob {
  int64_t number = 0;
  v1::Job job;
};

class Store {
 public:
  // Called after each operation with its label (apply, delete, get_job,
  // list_jobs, ...) and duration.
  using Observer = std::function<void(const char* operation, absl::Duration)>;

  // Opens or makes the file.
  // Errors: FAILED_PRECONDITION for a newer schema; DATA_LOSS for a damaged
  // file that could not be read at all; INTERNAL with SQLite's reason.
  // A file damaged in part is kept as PATH.damaged-N and what can be read of
  // it goes into a new one; `recovery_note` of the result says so.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& path);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void SetObserver(Observer observer);

  // Empty: the file was whole.
  const std::string& recovery_note() const { return recovery_note_; }

  // One transaction: all or nothing, on disk when it returns.
  // Errors: ALREADY_EXISTS for a job id or request id that is there; INTERNAL,
  // RESOURCE_EXHAUSTED (disk full).
  absl::Status Apply(const Change& change);

  // Removes all rows of a job.
  absl::Status DeleteJob(const std::string& id);

  // With spec and plan. Errors: NOT_FOUND.
  absl::StatusOr<NumberedJob> GetJob(const std::string& id);

  // Empty if there are none.
  absl::StatusOr<v1::JobPlans> GetPlans(const std::string& id);

  // Newest first, with number below `before` (0: from the newest), in one of
  // `states` (empty: all). Stops at `limit` jobs or at about `max_bytes`.
  // Plans come without decisions and pareto.
  absl::StatusOr<std::vector<NumberedJob>> ListJobs(
      const std::vector<v1::State>& states, int64_t before, int limit,
      int64_t max_bytes);

  // Jobs in no final state, oldest first, with spec and plan.
  absl::StatusOr<std::vector<NumberedJob>> LiveJobs();

  // How many jobs are in each state, by the number of the state.
  absl::StatusOr<std::vector<int64_t>> CountJobs();

  absl::StatusOr<std::optional<RequestRow>> GetRequest(
      const std::string& request_id);

  // Events with larger numbers, in order, at most `limit`, without spec and
  // plan.
  absl::StatusOr<std::vector<v1::JobEvent>> Events(const std::string& id,
                                                   int64_t after_sequence,
                                                   int limit);
  // 0 if there is none.
  absl::StatusOr<int64_t> LastEvent(const std::string& id);

  // Steps after `after_step` in order, at most `limit`, each from the newest
  // attempt that ran it, ranks put together. Only steps that all `num_ranks`
  // have reported.
  absl::StatusOr<std::vector<v1::Step>> Steps(const std::string& id,
                                              int num_ranks, int64_t after_step,
                                              int limit);

  // Of one attempt, by rank; ranks that have not reported are missing.
  absl::StatusOr<std::vector<RankRow>> Ranks(const std::string& id,
                                             int attempt);
  absl::StatusOr<std::optional<AttemptRow>> GetAttempt(const std::string& id,
                                                       int attempt);

  // Size of the file and its journal.
  int64_t SizeBytes() const;

 private:
  struct Connection;
  Store();

  std::string path_;
  std::string recovery_note_;
  Observer observer_;
  std::unique_ptr<Connection> writer_;
  std::unique_ptr<Connection> reader_;
};

}  // namespace ebb
