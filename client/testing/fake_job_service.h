// JobService in memory, on a real Unix socket: says what a test has put into
// it, and fails where the test wants it to.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/job_service.grpc.pb.h"

namespace ebb {

class FakeJobService : public v1::JobService::Service {
 public:
  explicit FakeJobService(std::string version);
  ~FakeJobService() override;

  // Listens at the path; may be called again after Stop.
  void Start(const std::string& socket_path);
  // Ends all calls; clients see a lost connection.
  void Stop();

  // What there is. Jobs are replaced by id; a job's events get the next
  // sequence number.
  void SetJob(const v1::Job& job);
  void AddEvent(const std::string& id, v1::JobEvent event);
  void AddStep(const std::string& id, const v1::Step& step);
  void SetLog(const std::string& id, const std::string& text);
  void SetPlan(const v1::PlanJobResponse& response);
  void SetGraphPlan(const v1::PlanGraphResponse& response);
  void SetCheckedSchedule(const v1::CheckScheduleResponse& response);
  // What SampleJob sends for every job that there is.
  void SetSample(const std::vector<v1::SampleChunk>& chunks);

  // Jobs made from now on start from this directory, whatever was asked.
  void SetInitFrom(const std::string& directory);

  // The next calls of the method ("CreateJob") fail so, one status each.
  void FailNext(const std::string& method, const absl::Status& status);
  // The next stream breaks with UNAVAILABLE after so many messages.
  void BreakNextStream(const std::string& method, int num_messages);

  // Calls so far, failed ones too.
  int NumCalls(const std::string& method);
  std::vector<v1::CreateJobRequest> created();
  std::vector<v1::CheckJobRequest> checked();
  std::vector<v1::CancelJobRequest> cancelled();
  std::vector<v1::SwitchPolicyRequest> switched();
  std::vector<v1::ExportJobRequest> exported();
  std::vector<v1::SampleJobRequest> sampled();
  std::vector<v1::PlanGraphRequest> planned_graphs();
  std::vector<v1::CheckScheduleRequest> checked_schedules();
  // Waits until the method has been called so often.
  void AwaitCalls(const std::string& method, int num_calls);

  grpc::Status PlanJob(grpc::ServerContext* context,
                       const v1::PlanJobRequest* request,
                       v1::PlanJobResponse* response) override;
  grpc::Status CreateJob(grpc::ServerContext* context,
                         const v1::CreateJobRequest* request,
                         v1::Job* response) override;
  grpc::Status CheckJob(grpc::ServerContext* context,
                        const v1::CheckJobRequest* request,
                        v1::CheckJobResponse* response) override;
  grpc::Status GetJob(grpc::ServerContext* context,
                      const v1::GetJobRequest* request,
                      v1::Job* response) override;
  grpc::Status ListJobs(grpc::ServerContext* context,
                        const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override;
  grpc::Status CancelJob(grpc::ServerContext* context,
                         const v1::CancelJobRequest* request,
                         v1::Job* response) override;
  // DONE at once for a queued job; PENDING for another: its fate is an event
  // that the test adds.
  grpc::Status SwitchPolicy(grpc::ServerContext* context,
                            const v1::SwitchPolicyRequest* request,
                            v1::SwitchPolicyResponse* response) override;
  grpc::Status DeleteJob(grpc::ServerContext* context,
                         const v1::DeleteJobRequest* request,
                         v1::DeleteJobResponse* response) override;
  // Two files of 4 KiB; the newest step is 7.
  grpc::Status ExportJob(grpc::ServerContext* context,
                         const v1::ExportJobRequest* request,
                         v1::ExportJobResponse* response) override;
  grpc::Status PlanGraph(grpc::ServerContext* context,
                         const v1::PlanGraphRequest* request,
                         v1::PlanGraphResponse* response) override;
  grpc::Status CheckSchedule(grpc::ServerContext* context,
                             const v1::CheckScheduleRequest* request,
                             v1::CheckScheduleResponse* response) override;
  grpc::Status WatchJob(grpc::ServerContext* context,
                        const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::JobEvent>* writer) override;
  grpc::Status ListSteps(grpc::ServerContext* context,
                         const v1::ListStepsRequest* request,
                         grpc::ServerWriter<v1::Step>* writer) override;
  grpc::Status StreamLogs(grpc::ServerContext* context,
                          const v1::StreamLogsRequest* request,
                          grpc::ServerWriter<v1::LogChunk>* writer) override;
  grpc::Status SampleJob(grpc::ServerContext* context,
                         const v1::SampleJobRequest* request,
                         grpc::ServerWriter<v1::SampleChunk>* writer) override;
  grpc::Status GetServer(grpc::ServerContext* context,
                         const v1::GetServerRequest* request,
                         v1::Server* response) override;

 private:
  // Counts the call; the status that the test wants, else OK.
  grpc::Status Begin(const std::string& method);
  grpc::Status FindJob(const std::string& id, v1::Job* job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The number of messages after which this stream breaks; -1: never.
  int TakeBreak(const std::string& method);
  // False: the call or the service ends.
  bool WaitForChange(grpc::ServerContext* context, int64_t seen_version);

  const std::string version_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Counts changes, for streams that wait for one.
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  // In order of their ids.
  std::map<std::string, v1::Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<v1::JobEvent>> events_
      ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<v1::Step>> steps_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> logs_ ABSL_GUARDED_BY(mutex_);
  v1::PlanJobResponse plan_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<absl::Status>> failures_
      ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> breaks_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> num_calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::CreateJobRequest> created_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::CheckJobRequest> checked_ ABSL_GUARDED_BY(mutex_);
  std::string init_from_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::CancelJobRequest> cancelled_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::SwitchPolicyRequest> switched_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::ExportJobRequest> exported_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::SampleChunk> sample_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::SampleJobRequest> sampled_ ABSL_GUARDED_BY(mutex_);
  v1::PlanGraphResponse graph_plan_ ABSL_GUARDED_BY(mutex_);
  v1::CheckScheduleResponse checked_schedule_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::PlanGraphRequest> planned_graphs_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::CheckScheduleRequest> checked_schedules_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace ebb
