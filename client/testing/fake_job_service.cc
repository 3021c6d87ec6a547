// See fake_job_service.h.
#include "client/testing/fake_job_service.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "kernels/status.h"
#include "proto/rpc_status.h"

namespace ebb {
namespace {

// Of the pages of ListJobs, small so that tests need few jobs.
constexpr int kPageSize = 2;

bool HasEnded(const v1::Job& job) { return job.state() >= v1::STATE_SUCCEEDED; }

grpc::Status Broken() {
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken by the test");
}

}  // namespace

FakeJobService::FakeJobService(std::string version)
    : version_(std::move(version)) {}

FakeJobService::~FakeJobService() { Stop(); }

void FakeJobService::Start(const std::string& socket_path) {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = false;
  }
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("unix:", socket_path),
                           grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  EBB_CHECK(server_ != nullptr);
}

void FakeJobService::Stop() {
  if (server_ == nullptr) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    ++changes_;
  }
  server_->Shutdown(absl::ToChronoTime(absl::Now()));
  server_->Wait();
  server_.reset();
}

void FakeJobService::SetJob(const v1::Job& job) {
  absl::MutexLock lock(&mutex_);
  jobs_[job.id()] = job;
  ++changes_;
}

void FakeJobService::AddEvent(const std::string& id, v1::JobEvent event) {
  absl::MutexLock lock(&mutex_);
  event.set_sequence(static_cast<int64_t>(events_[id].size()) + 1);
  if (event.has_job()) jobs_[id] = event.job();
  events_[id].push_back(std::move(event));
  ++changes_;
}

void FakeJobService::AddStep(const std::string& id, const v1::Step& step) {
  absl::MutexLock lock(&mutex_);
  steps_[id].push_back(step);
  ++changes_;
}

void FakeJobService::SetLog(const std::string& id, const std::string& text) {
  absl::MutexLock lock(&mutex_);
  logs_[id] = text;
  ++changes_;
}

void FakeJobService::SetPlan(const v1::PlanJobResponse& response) {
  absl::MutexLock lock(&mutex_);
  plan_ = response;
}

void FakeJobService::SetGraphPlan(const v1::PlanGraphResponse& response) {
  absl::MutexLock lock(&mutex_);
  graph_plan_ = response;
}

void FakeJobService::SetCheckedSchedule(
    const v1::CheckScheduleResponse& response) {
  absl::MutexLock lock(&mutex_);
  checked_schedule_ = response;
}

void FakeJobService::SetSample(const std::vector<v1::SampleChunk>& chunks) {
  absl::MutexLock lock(&mutex_);
  sample_ = chunks;
}

void FakeJobService::SetInitFrom(const std::string& directory) {
  absl::MutexLock lock(&mutex_);
  init_from_ = directory;
}

void FakeJobService::FailNext(const std::string& method,
                              const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  failures_[method].push_back(status);
}

void FakeJobService::BreakNextStream(const std::string& method,
                                     int num_messages) {
  absl::MutexLock lock(&mutex_);
  breaks_[method] = num_messages;
}

int FakeJobService::NumCalls(const std::string& method) {
  absl::MutexLock lock(&mutex_);
  return num_calls_[method];
}

std::vector<v1::CreateJobRequest> FakeJobService::created() {
  absl::MutexLock lock(&mutex_);
  return created_;
}

std::vector<v1::CheckJobRequest> FakeJobService::checked() {
  absl::MutexLock lock(&mutex_);
  return checked_;
}

std::vector<v1::CancelJobRequest> FakeJobService::cancelled() {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

std::vector<v1::SwitchPolicyRequest> FakeJobService::switched() {
  absl::MutexLock lock(&mutex_);
  return switched_;
}

std::vector<v1::ExportJobRequest> FakeJobService::exported() {
  absl::MutexLock lock(&mutex_);
  return exported_;
}

std::vector<v1::SampleJobRequest> FakeJobService::sampled() {
  absl::MutexLock lock(&mutex_);
  return sampled_;
}

std::vector<v1::PlanGraphRequest> FakeJobService::planned_graphs() {
  absl::MutexLock lock(&mutex_);
  return planned_graphs_;
}

std::vector<v1::CheckScheduleRequest> FakeJobService::checked_schedules() {
  absl::MutexLock lock(&mutex_);
  return checked_schedules_;
}

void FakeJobService::AwaitCalls(const std::string& method, int num_calls) {
  absl::MutexLock lock(&mutex_);
  const auto called = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return num_calls_[method] >= num_calls;
  };
  mutex_.Await(absl::Condition(&called));
}

grpc::Status FakeJobService::Begin(const std::string& method) {
  absl::MutexLock lock(&mutex_);
  ++num_calls_[method];
  std::vector<absl::Status>& failures = failures_[method];
  if (failures.empty()) return grpc::Status::OK;
  const absl::Status status = failures.front();
  failures.erase(failures.begin());
  return ToGrpcStatus(status);
}

grpc::Status FakeJobService::FindJob(const std::string& id, v1::Job* job) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND,
                        absl::StrCat("no such job: ", id));
  }
  *job = it->second;
  return grpc::Status::OK;
}

int FakeJobService::TakeBreak(const std::string& method) {
  absl::MutexLock lock(&mutex_);
  const auto it = breaks_.find(method);
  if (it == breaks_.end()) return -1;
  const int num_messages = it->second;
  breaks_.erase(it);
  return num_messages;
}

bool FakeJobService::WaitForChange(grpc::ServerContext* context,
                                   int64_t seen_version) {
  absl::MutexLock lock(&mutex_);
  const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || changes_ != seen_version;
  };
  // A cancelled call cannot wake this thread: look now and then.
  while (!mutex_.AwaitWithTimeout(absl::Condition(&changed),
                                  absl::Milliseconds(5))) {
    if (context->IsCancelled()) return false;
  }
  return !stopping_;
}

grpc::Status FakeJobService::PlanJob(grpc::ServerContext*,
                                     const v1::PlanJobRequest* request,
                                     v1::PlanJobResponse* response) {
  if (grpc::Status status = Begin("PlanJob"); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  *response = plan_;
  *response->mutable_effective_spec() = request->spec();
  if (!request->dump()) response->clear_dump();
  if (request->timeline_points() == 0) response->clear_timeline();
  if (request->accounting().empty()) response->clear_paper_accounting();
  return grpc::Status::OK;
}

grpc::Status FakeJobService::CreateJob(grpc::ServerContext*,
                                       const v1::CreateJobRequest* request,
                                       v1::Job* response) {
  const grpc::Status failure = Begin("CreateJob");
  absl::MutexLock lock(&mutex_);
  created_.push_back(*request);
  // A failure strikes after the job is stored: the worst case for a retry.
  v1::Job job;
  job.set_id("newjob01");
  job.set_name(request->spec().name());
  job.set_state(v1::STATE_QUEUED);
  *job.mutable_spec() = request->spec();
  if (!init_from_.empty()) {
    job.mutable_spec()->mutable_checkpoint()->set_init_from(init_from_);
  }
  if (jobs_.find(job.id()) == jobs_.end()) jobs_[job.id()] = job;
  *response = job;
  return failure;
}

grpc::Status FakeJobService::CheckJob(grpc::ServerContext*,
                                      const v1::CheckJobRequest* request,
                                      v1::CheckJobResponse*) {
  const grpc::Status failure = Begin("CheckJob");
  absl::MutexLock lock(&mutex_);
  checked_.push_back(*request);
  return failure;
}

grpc::Status FakeJobService::GetJob(grpc::ServerContext*,
                                    const v1::GetJobRequest* request,
                                    v1::Job* response) {
  if (grpc::Status status = Begin("GetJob"); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  return FindJob(request->id(), response);
}

grpc::Status FakeJobService::ListJobs(grpc::ServerContext*,
                                      const v1::ListJobsRequest* request,
                                      v1::ListJobsResponse* response) {
  if (grpc::Status status = Begin("ListJobs"); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, job] : jobs_) {
    if (id <= request->page_token()) continue;
    if (request->states_size() > 0 &&
        std::find(request->states().begin(), request->states().end(),
                  job.state()) == request->states().end()) {
      continue;
    }
    if (response->jobs_size() == kPageSize) {
      response->set_next_page_token(
          response->jobs(response->jobs_size() - 1).id());
      break;
    }
    *response->add_jobs() = job;
  }
  return grpc::Status::OK;
}

grpc::Status FakeJobService::CancelJob(grpc::ServerContext*,
                                       const v1::CancelJobRequest* request,
                                       v1::Job* response) {
  if (grpc::Status status = Begin("CancelJob"); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  grpc::Status status = FindJob(request->id(), response);
  if (!status.ok()) return status;
  if (HasEnded(*response)) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                        "the job has ended");
  }
  cancelled_.push_back(*request);
  response->set_state(v1::STATE_CANCELLING);
  v1::JobEvent event;
  event.set_sequence(static_cast<int64_t>(events_[request->id()].size()) + 1);
  *event.mutable_job() = *response;
  event.mutable_job()->set_state(v1::STATE_CANCELLED);
  jobs_[request->id()] = event.job();
  events_[request->id()].push_back(event);
  ++changes_;
  return grpc::Status::OK;
}

grpc::Status FakeJobService::SwitchPolicy(
    grpc::ServerContext*, const v1::SwitchPolicyRequest* request,
    v1::SwitchPolicyResponse* response) {
  if (grpc::Status status = Begin("SwitchPolicy"); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  v1::Job job;
  grpc::Status status = FindJob(request->id(), &job);
  if (!status.ok()) return status;
  switched_.push_back(*request);
  v1::PolicySwitch& made = *response->mutable_policy_switch();
  made.set_number(static_cast<int64_t>(switched_.size()));
  made.set_state(job.state() == v1::STATE_QUEUED
                     ? v1::PolicySwitch::STATE_DONE
                     : v1::PolicySwitch::STATE_PENDING);
  made.set_at_step(request->at_step());
  made.set_next_run(request->next_run());
  made.set_step(job.state() == v1::STATE_QUEUED ? 1 : 0);
  made.mutable_before()->set_policy(job.plan().policy());
  made.mutable_after()->set_policy("full");
  v1::JobEvent event;
  event.set_sequence(static_cast<int64_t>(events_[request->id()].size()) + 1);
  *event.mutable_policy_switch() = made;
  response->set_sequence(event.sequence());
  events_[request->id()].push_back(event);
  ++changes_;
  return grpc::Status::OK;
}

grpc::Status FakeJobService::DeleteJob(grpc::ServerContext*,
                                       const v1::DeleteJobRequest* request,
                                       v1::DeleteJobResponse*) {
  if (grpc::Status status = Begin("DeleteJob"); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  v1::Job job;
  grpc::Status status = FindJob(request->id(), &job);
  if (status.ok()) jobs_.erase(request->id());
  return status;
}

grpc::Status FakeJobService::ExportJob(grpc::ServerContext*,
                                       const v1::ExportJobRequest* request,
                                       v1::ExportJobResponse* response) {
  if (grpc::Status status = Begin("ExportJob"); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  v1::Job job;
  if (grpc::Status status = FindJob(request->id(), &job); !status.ok()) {
    return status;
  }
  exported_.push_back(*request);
  response->set_id(request->id());
  response->set_step(request->step() == 0 ? 7 : request->step());
  response->set_directory(request->directory());
  response->add_files("config.json");
  response->add_files("model.safetensors");
  response->set_bytes(4096);
  return grpc::Status::OK;
}

grpc::Status FakeJobService::PlanGraph(grpc::ServerContext*,
                                       const v1::PlanGraphRequest* request,
                                       v1::PlanGraphResponse* response) {
  if (grpc::Status status = Begin("PlanGraph"); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  planned_graphs_.push_back(*request);
  *response = graph_plan_;
  return grpc::Status::OK;
}

grpc::Status FakeJobService::CheckSchedule(
    grpc::ServerContext*, const v1::CheckScheduleRequest* request,
    v1::CheckScheduleResponse* response) {
  if (grpc::Status status = Begin("CheckSchedule"); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  checked_schedules_.push_back(*request);
  *response = checked_schedule_;
  return grpc::Status::OK;
}

grpc::Status FakeJobService::WatchJob(
    grpc::ServerContext* context, const v1::WatchJobRequest* request,
    grpc::ServerWriter<v1::JobEvent>* writer) {
  if (grpc::Status status = Begin("WatchJob"); !status.ok()) return status;
  int messages_left = TakeBreak("WatchJob");
  auto sequence = static_cast<size_t>(request->after_sequence());
  while (true) {
    std::vector<v1::JobEvent> events;
    v1::Job job;
    int64_t seen_version = 0;
    {
      absl::MutexLock lock(&mutex_);
      grpc::Status status = FindJob(request->id(), &job);
      if (!status.ok()) return status;
      const std::vector<v1::JobEvent>& all = events_[request->id()];
      events.assign(all.begin() + std::min(sequence, all.size()), all.end());
      seen_version = changes_;
    }
    for (const v1::JobEvent& event : events) {
      if (messages_left-- == 0) return Broken();
      writer->Write(event);
      sequence = static_cast<size_t>(event.sequence());
    }
    if (HasEnded(job)) return grpc::Status::OK;
    if (messages_left == 0) return Broken();
    if (!WaitForChange(context, seen_version)) {
      return grpc::Status::CANCELLED;
    }
  }
}

grpc::Status FakeJobService::ListSteps(grpc::ServerContext* context,
                                       const v1::ListStepsRequest* request,
                                       grpc::ServerWriter<v1::Step>* writer) {
  if (grpc::Status status = Begin("ListSteps"); !status.ok()) return status;
  int messages_left = TakeBreak("ListSteps");
  int64_t after_step = request->after_step();
  while (true) {
    std::vector<v1::Step> steps;
    v1::Job job;
    int64_t seen_version = 0;
    {
      absl::MutexLock lock(&mutex_);
      grpc::Status status = FindJob(request->id(), &job);
      if (!status.ok()) return status;
      steps = steps_[request->id()];
      seen_version = changes_;
    }
    for (const v1::Step& step : steps) {
      if (step.step() <= after_step) continue;
      if (messages_left-- == 0) return Broken();
      writer->Write(step);
      after_step = step.step();
    }
    if (!request->follow() || HasEnded(job)) return grpc::Status::OK;
    if (messages_left == 0) return Broken();
    if (!WaitForChange(context, seen_version)) {
      return grpc::Status::CANCELLED;
    }
  }
}

grpc::Status FakeJobService::StreamLogs(
    grpc::ServerContext* context, const v1::StreamLogsRequest* request,
    grpc::ServerWriter<v1::LogChunk>* writer) {
  if (grpc::Status status = Begin("StreamLogs"); !status.ok()) return status;
  int messages_left = TakeBreak("StreamLogs");
  auto offset = static_cast<size_t>(request->offset());
  bool first = true;
  while (true) {
    std::string text;
    v1::Job job;
    int64_t seen_version = 0;
    {
      absl::MutexLock lock(&mutex_);
      grpc::Status status = FindJob(request->id(), &job);
      if (!status.ok()) return status;
      text = logs_[request->id()];
      seen_version = changes_;
    }
    if (first && request->tail_lines() > 0) {
      offset = text.size();
      for (int lines = 0; offset > 0; --offset) {
        if (text[offset - 1] == '\n' && ++lines > request->tail_lines()) break;
      }
    }
    first = false;
    // Small chunks, so that tests see several.
    while (offset < text.size()) {
      if (messages_left-- == 0) return Broken();
      v1::LogChunk chunk;
      chunk.set_content(text.substr(offset, 4));
      offset += chunk.content().size();
      chunk.set_next_offset(static_cast<int64_t>(offset));
      chunk.set_attempt(1);
      writer->Write(chunk);
    }
    if (!request->follow() || HasEnded(job)) return grpc::Status::OK;
    if (messages_left == 0) return Broken();
    if (!WaitForChange(context, seen_version)) {
      return grpc::Status::CANCELLED;
    }
  }
}

grpc::Status FakeJobService::SampleJob(
    grpc::ServerContext*, const v1::SampleJobRequest* request,
    grpc::ServerWriter<v1::SampleChunk>* writer) {
  if (grpc::Status status = Begin("SampleJob"); !status.ok()) return status;
  int messages_left = TakeBreak("SampleJob");
  absl::MutexLock lock(&mutex_);
  sampled_.push_back(*request);
  v1::Job job;
  grpc::Status status = FindJob(request->id(), &job);
  if (!status.ok()) return status;
  for (const v1::SampleChunk& chunk : sample_) {
    if (messages_left-- == 0) return Broken();
    writer->Write(chunk);
  }
  return grpc::Status::OK;
}

grpc::Status FakeJobService::GetServer(grpc::ServerContext*,
                                       const v1::GetServerRequest*,
                                       v1::Server* response) {
  if (grpc::Status status = Begin("GetServer"); !status.ok()) return status;
  response->set_version(version_);
  response->set_pid(getpid());
  return grpc::Status::OK;
}

}  // namespace ebb
