// What happens to jobs, told as metrics. The families stand in
// monitoring/metrics.yaml; the series in a MetricTable.
//
// Series with job_id exist from a job's first attempt until 60 s after its end;
// beside each such counter stands one without job_id that stays. Evaluation
// tokens are not counted as trained.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "monitoring/clock.h"
#include "proto/job_service.pb.h"
#include "server/metric_table.h"

namespace ebb {

// How long the series of a job outlive it.
constexpr absl::Duration kSeriesLinger = absl::Seconds(60);

// Thread-safe.
class Exporter {
 public:
  // `table` and `clock` outlive the exporter.
  Exporter(MetricTable* table, const Clock* clock);

  void SetBuild(absl::string_view version, absl::string_view revision);
  void SetDeviceMemory(absl::string_view device, int64_t bytes);
  void SetStoreSize(int64_t bytes);
  // By the number of the state, at the start.
  void SetJobCounts(const std::vector<int64_t>& counts);

  // A stored change of state; `from` is STATE_UNSPECIFIED for a new job.
  void JobChanged(v1::State from, const v1::Job& job);
  // A change that the table of states does not allow, and that was not made.
  void TransitionRefused(v1::State from, v1::State to);
  void JobDeleted(v1::State state);
  void QueueWaited(absl::Duration wait);
  void StartTook(absl::Duration latency);
  void CancelTook(absl::Duration duration);

  // Series of the job begin, at 0. An attempt that follows keeps the counters.
  void AttemptStarted(const v1::Job& job, int num_ranks);
  // What the plan in force predicts, and the job's description, in one scrape.
  void SetPlan(const v1::Job& job, int num_ranks);
  // So many changes of policy came into force. `replayed`: as StepStored.
  void PolicySwitched(const std::string& job_id, int64_t count, bool replayed);
  // So many times ("start", "switch") an arena could not be had, and so many
  // other plans were tried then.
  void OutOfMemory(const std::string& job_id, absl::string_view phase,
                   int64_t count, int64_t retries);
  // A step that one rank reported. `replayed`: it was stored before this
  // process began, so that only the job's own series take it.
  void StepStored(const std::string& job_id, int rank, const v1::Step& step,
                  bool replayed);
  void Heard(const std::string& job_id, int rank);
  void JobEnded(const std::string& job_id);
  // Takes away series whose time is over.
  void Expire();
  // Some series wait for that.
  bool HasLeaving();

  void LauncherOperation(const char* launcher, const char* operation, bool ok);
  void StoreOperation(const char* operation, absl::Duration duration);
  // All methods of a service, so that their counters start at 0.
  void RpcKnown(const char* type, const char* service, const char* method);
  // Returns when that was, for RpcHandled.
  absl::Duration RpcStarted(const char* type, const char* service,
                            const char* method);
  void RpcHandled(const char* type, const char* service, const char* method,
                  absl::StatusCode code, absl::Duration start);

 private:
  void CountJob(v1::State state, int64_t change);

  MetricTable* const table_;
  const Clock* const clock_;
  absl::Mutex mutex_;
  // By the number of the state.
  std::vector<int64_t> counts_ ABSL_GUARDED_BY(mutex_);
  // Monotonic time at which a job's series go.
  std::map<std::string, absl::Duration> leaving_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ebb
