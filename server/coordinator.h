// The coordinator: every request and every observation becomes a decision, the
// decision one transaction of the store, and only then its effect (a launch, an
// order, a signal). What is in memory can be read back from the store and the
// attempts' directories at any moment: Recover does, at each start.
//
// Thread-safe. mutex_ is the only lock of decisions; the store, the exporter
// and the inventory have their own inside and never call back. Reads go to the
// store and take copies.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "monitoring/clock.h"
#include "proto/job_plans.pb.h"
#include "proto/job_service.pb.h"
#include "proto/worker_service.pb.h"
#include "server/exporter.h"
#include "server/inventory.h"
#include "server/job_files.h"
#include "server/launcher.h"
#include "server/planner/ladder.h"
#include "server/store.h"
#include "worker/model/job_spec.h"
#include "worker/program/plan.h"

namespace ebb {

// The way to one connected rank. Owned by its stream and by the coordinator.
class WorkerConnection {
 public:
  virtual ~WorkerConnection() = default;
  // Queues a message; never blocks. Dropped once closed.
  virtual void Send(v1::CoordinatorMessage message) = 0;
  // Ends the stream with this status after what is queued; OK is a good end.
  virtual void Close(const absl::Status& status) = 0;
};

// Who asked for tokens.
struct SampleListener {
  // Takes the next ones; false: nobody is there any more.
  std::function<bool(const v1::SampleChunk&)> on_chunk;
  // Asked several times a second; true ends the call.
  std::function<bool()> is_cancelled;
};

// What the coordinator works with. All but the functions outlive it.
struct CoordinatorParts {
  Store* store = nullptr;
  Launcher* launcher = nullptr;
  Exporter* exporter = nullptr;
  Inventory* inventory = nullptr;
  Clock* clock = nullptr;
  std::function<absl::StatusOr<Plan>(const JobSpec&, const Backend&)> plan_job;
  // As PlanLadder: what else the job could do, in order of falling peak.
  std::function<absl::StatusOr<std::vector<PlanRung>>(const JobSpec&,
                                                      const Plan&)>
      plan_ladder;
  std::function<absl::StatusOr<std::string>(const JobSpec&, const Plan&,
                                            const Backend&)>
      dump_job;
  // Measures what the ops of an effective spec take on this machine, by OpKey;
  // returns soon after `cancelled` says true. Called without a lock.
  std::function<absl::StatusOr<std::map<std::string, double>>(
      const v1::JobSpec& effective, const std::function<bool()>& cancelled)>
      measure_ops;
  // Keeps such times for later plans. Never calls back.
  std::function<void(const Backend&, const std::map<std::string, double>&)>
      keep_op_times;
  // Looks at the files that a job names, as CheckJobFiles.
  std::function<JobFiles(const v1::JobSpec& full,
                         const std::vector<v1::Violation>& wrong)>
      check_files;
  // Writes one of the checkpoints below a directory as the request says;
  // returns when it is done, or soon after `cancelled` says true. Called
  // without a lock.
  std::function<absl::StatusOr<v1::ExportJobResponse>(
      const std::string& checkpoints, const v1::ExportJobRequest&,
      const std::function<bool()>& cancelled)>
      export_job;
  // Makes tokens with one of the checkpoints below a directory as the request
  // says. Called without a lock.
  std::function<absl::Status(const std::string& checkpoints,
                             const v1::SampleJobRequest&,
                             const SampleListener&)>
      sample_job;
  // A new [a-z0-9]{8}; asked again if it is taken.
  std::function<std::string()> make_id;
};

struct CoordinatorOptions {
  // Absolute. Jobs lie in its folder jobs/.
  std::string state_directory;
  // Values that a program drops become NaN in every job (tests).
  bool poison = false;
};

struct JobEvents {
  std::vector<v1::JobEvent> events;
  // The job is in a final state and nothing follows.
  bool ended = false;
};

struct JobSteps {
  std::vector<v1::Step> steps;
  bool ended = false;
};

// Where the logs of an attempt lie.
struct LogLocation {
  int attempt = 0;        // 0: none yet
  std::string directory;  // of the attempt
  int num_ranks = 1;
  bool ended = false;  // the job is in a final state
};

class Coordinator {
 public:
  Coordinator(CoordinatorParts parts, CoordinatorOptions options);
  // Stops the thread; jobs run on.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Reads the store and finds the attempts that still live. Called once, before
  // anything else.
  absl::Status Recover();

  // Starts the thread that calls Tick. Tests call Tick themselves.
  void Start();

  // One look at everything: stores what has been reported, judges attempts,
  // starts jobs whose turn it is.
  void Tick();

  // --- JobService; errors as in job_service.proto ---
  // With `profile` it takes as long as some steps; `cancelled` is asked then.
  absl::StatusOr<v1::PlanJobResponse> PlanJob(
      const v1::PlanJobRequest& request,
      const std::function<bool()>& cancelled);
  absl::StatusOr<v1::Job> CreateJob(const v1::CreateJobRequest& request);
  absl::Status CheckJob(const v1::CheckJobRequest& request);
  absl::StatusOr<v1::Job> GetJob(const v1::GetJobRequest& request);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(
      const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Job> CancelJob(const v1::CancelJobRequest& request);
  absl::StatusOr<v1::SwitchPolicyResponse> SwitchPolicy(
      const v1::SwitchPolicyRequest& request);
  absl::Status DeleteJob(const v1::DeleteJobRequest& request);
  // Takes as long as it takes; `cancelled` is asked meanwhile.
  absl::StatusOr<v1::ExportJobResponse> ExportJob(
      const v1::ExportJobRequest& request,
      const std::function<bool()>& cancelled);
  // Takes as long as it takes.
  absl::Status SampleJob(const v1::SampleJobRequest& request,
                         const SampleListener& listener);

  // What is there now; the streams ask again after WaitForChange.
  absl::StatusOr<JobEvents> EventsAfter(const std::string& id, int64_t sequence,
                                        int limit);
  absl::StatusOr<JobSteps> StepsAfter(const std::string& id, int64_t step,
                                      int limit);
  // attempt 0: the newest. Errors: NOT_FOUND; INVALID_ARGUMENT for a rank or an
  // attempt that the job does not have.
  absl::StatusOr<LogLocation> FindLog(const std::string& id, int attempt,
                                      int rank);

  // Returns the number of changes stored so far, once it is above `seen` or
  // after `timeout` of real time.
  int64_t WaitForChange(int64_t seen, absl::Duration timeout);

  // --- WorkerService ---
  // A stream's first message. OK: the connection is the rank's now and has its
  // answer queued; an older one is closed.
  // Errors: NOT_FOUND, FAILED_PRECONDITION, INVALID_ARGUMENT.
  absl::Status Connect(const v1::WorkerMessage& first,
                       std::shared_ptr<WorkerConnection> connection);
  // A later message of a connected rank. Reports are acknowledged once stored.
  absl::Status Receive(const v1::WorkerMessage& message,
                       const WorkerConnection* connection);
  // The stream has ended.
  void Disconnect(const v1::WorkerMessage& first,
                  const WorkerConnection* connection);

 private:
  struct LiveRank;
  struct LiveJob;
  struct Planned;

  // Plans on this machine and looks at the files; every mistake of both.
  absl::StatusOr<Planned> PlanAndCheckFiles(const v1::JobSpec& spec);
  absl::StatusOr<Planned> PlanSpec(const v1::JobSpec& spec, bool allow_built_in)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The plan with its ladder, as it is kept and sent.
  absl::StatusOr<v1::PendingPlan> PlanMemory(const v1::JobSpec& spec,
                                             const Backend& backend,
                                             bool may_climb_down,
                                             std::string* note)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether there is room for what the plan puts on disk.
  absl::Status CheckDisk(const v1::Job& job,
                         const v1::PlannedMemory& wanted) const;
  absl::StatusOr<google::protobuf::RepeatedPtrField<v1::PlannedMemory>>
  MakeLadder(const v1::JobSpec& effective, const JobSpec& spec,
             const Plan& plan);
  // The job if its policy can be switched as asked.
  absl::StatusOr<LiveJob*> FindToSwitch(const v1::SwitchPolicyRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::SwitchPolicyResponse> StoreSwitch(
      LiveJob& live, const v1::SwitchPolicyRequest& request,
      v1::PendingPlan wanted, const std::string& note)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::optional<v1::Job>> FindByRequest(
      const v1::CreateJobRequest& request);

  // Writes the job's new state with its event, then counts it.
  // On error nothing has changed.
  absl::Status ChangeState(LiveJob& live, v1::State to, v1::Reason reason,
                           const std::string& message, Change change = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds an event with the next sequence number to the change.
  void AddEvent(LiveJob& live, v1::JobEvent event, Change* change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Of switches whose fate, or whose wait, is news.
  void AddSwitchEvents(LiveJob& live,
                       const std::vector<v1::PolicySwitch>& switches,
                       Change* change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Gives the rank all orders to switch that wait, if it is connected.
  void SendSwitches(const LiveJob& live, const LiveRank& rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReceiveLocked(LiveJob& live, const v1::WorkerMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Stores all pending reports in one transaction and acknowledges them.
  absl::Status StoreReports() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void RecoverJob(NumberedJob stored) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReplaySteps(const LiveJob& live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Schedule() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LaunchAttempt(LiveJob& live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: the job has ended and is to be taken out of live_.
  bool Supervise(LiveJob& live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadLeftReports(LiveJob& live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopAttempt(LiveJob& live, StopSignal signal)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool EndJob(LiveJob& live, const Judgement& judgement)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();

  const CoordinatorParts parts_;
  const CoordinatorOptions options_;
  std::thread thread_;

  absl::Mutex mutex_;
  // Jobs in no final state, by id.
  std::map<std::string, std::unique_ptr<LiveJob>> live_ ABSL_GUARDED_BY(mutex_);
  // Messages received and not yet stored, in order of arrival.
  std::vector<v1::WorkerMessage> pending_ ABSL_GUARDED_BY(mutex_);
  int64_t num_changes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;
  // The last try to store reports failed: the next one waits.
  bool store_failing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ebb
