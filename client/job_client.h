// Calls of JobService with what every caller needs: a deadline on each, retries
// where a retry is right, and following that survives a restart of the
// coordinator. Errors are absl::Status, with the server's Violations as
// payload; UNAVAILABLE says what is wrong with the address.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ebb {

namespace v1 {
class CheckScheduleRequest;
class CheckScheduleResponse;
class CreateJobRequest;
class ExportJobRequest;
class ExportJobResponse;
class Job;
class JobEvent;
class JobSpec;
class ListJobsRequest;
class ListJobsResponse;
class LogChunk;
class PlanGraphRequest;
class PlanGraphResponse;
class PlanJobRequest;
class PlanJobResponse;
class SampleChunk;
class SampleJobRequest;
class Server;
class Step;
class StreamLogsRequest;
class SwitchPolicyRequest;
class SwitchPolicyResponse;
}  // namespace v1

// How long the client waits for what. Tests make them small.
struct CallTiming {
  // Planning the largest job takes under ten seconds.
  absl::Duration call_deadline = absl::Seconds(60);
  // A follow call that reaches it goes on with a new call.
  absl::Duration follow_deadline = absl::Hours(1);
  // Between attempts: first, then doubled up to the largest.
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration largest_backoff = absl::Seconds(1);
  // Attempts of an idempotent call that meets UNAVAILABLE.
  int num_attempts = 5;
  // Following gives up when the coordinator is away for longer.
  absl::Duration reconnect = absl::Seconds(60);
};

// Thread-safe. Calls block their thread; Cancel, from any thread, ends them
// all.
class JobClient {
 public:
  // Gives the address, "unix:PATH"; asked again after UNAVAILABLE, since a
  // restarted coordinator may listen elsewhere.
  using Resolver = std::function<absl::StatusOr<std::string>()>;

  explicit JobClient(Resolver resolve, CallTiming timing = {});
  ~JobClient();

  absl::StatusOr<v1::Server> GetServer();
  // One attempt under a deadline of its own: is anyone there?
  absl::StatusOr<v1::Server> ProbeServer(absl::Duration deadline);
  absl::StatusOr<v1::PlanJobResponse> PlanJob(
      const v1::PlanJobRequest& request);
  // Retried only with a request_id.
  absl::StatusOr<v1::Job> CreateJob(const v1::CreateJobRequest& request);
  // What CreateJob would find wrong.
  absl::Status CheckJob(const v1::JobSpec& spec);
  absl::StatusOr<v1::Job> GetJob(const std::string& id);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(
      const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Job> CancelJob(const std::string& id, bool now);
  absl::StatusOr<v1::SwitchPolicyResponse> SwitchPolicy(
      const v1::SwitchPolicyRequest& request);
  absl::Status DeleteJob(const std::string& id);
  // Waits as long as following does; not retried.
  absl::StatusOr<v1::ExportJobResponse> ExportJob(
      const v1::ExportJobRequest& request);

  // One attempt: a search may take long.
  absl::StatusOr<v1::PlanGraphResponse> PlanGraph(
      const v1::PlanGraphRequest& request, absl::Duration deadline);
  absl::StatusOr<v1::CheckScheduleResponse> CheckSchedule(
      const v1::CheckScheduleRequest& request);

  // Steps after `after_step` that are there already.
  absl::Status ListSteps(const std::string& id, int64_t after_step,
                         const std::function<void(const v1::Step&)>& on_step);
  // The same, then live ones until the job ends: returns the job then.
  absl::StatusOr<v1::Job> FollowSteps(
      const std::string& id, int64_t after_step,
      const std::function<void(const v1::Step&)>& on_step);
  // Events after `after_sequence` until the job ends: returns the job then.
  absl::StatusOr<v1::Job> FollowJob(
      const std::string& id, int64_t after_sequence,
      const std::function<void(const v1::JobEvent&)>& on_event);
  // Log bytes in order, each once; with request.follow until the job ends.
  absl::Status StreamLogs(
      const v1::StreamLogsRequest& request,
      const std::function<void(const v1::LogChunk&)>& on_chunk);

  // Tokens as they are made; one attempt.
  absl::Status SampleJob(
      const v1::SampleJobRequest& request,
      const std::function<void(const v1::SampleChunk&)>& on_chunk);

  // Says that the connection is lost or found again; called on the thread of
  // the call. Set before following starts.
  void set_on_notice(std::function<void(absl::string_view)> on_notice);

  // Ends calls in progress and all later ones with CANCELLED.
  void Cancel();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// SUCCEEDED, FAILED or CANCELLED.
bool IsFinal(const v1::Job& job);

}  // namespace ebb
