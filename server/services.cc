// Handlers, the two kinds of streams, and the server that carries them.
#include "server/services.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>

#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "kernels/status.h"
#include "monitoring/log.h"
#include "proto/convert.h"
#include "proto/job_service.grpc.pb.h"
#include "proto/rpc_status.h"
#include "proto/worker_service.grpc.pb.h"
#include "server/graph_requests.h"
#include "server/log_file.h"

namespace ebb {
namespace {

constexpr int kMaxThreads = 400;
constexpr int kMaxFollowers = 200;
constexpr int kMaxWorkerStreams = 64;
// Above the limit of a spec, so that one that is too large gets our message.
constexpr int kMaxReceiveBytes = 8 << 20;
// How often a stream looks whether its client is still there.
constexpr absl::Duration kFollowPeriod = absl::Milliseconds(200);
constexpr int kStreamBatch = 200;
constexpr int64_t kLogChunkBytes = 64 << 10;
// A tail looks back no further: a line of 50 MB is not read for its last word.
constexpr int64_t kMaxTailBytes = 16 << 20;
// Orders and acknowledgements that a worker has not taken: then it hangs.
constexpr size_t kMaxQueued = 10000;

constexpr char kJobService[] = "ebb.v1.JobService";
constexpr char kWorkerService[] = "ebb.v1.WorkerService";
constexpr char kUnary[] = "unary";
constexpr char kServerStream[] = "server_stream";
constexpr char kBidiStream[] = "bidi_stream";

// Counts a call from start to end.
class CountedCall {
 public:
  CountedCall(Exporter* exporter, const char* type, const char* service,
              const char* method)
      : exporter_(exporter),
        type_(type),
        service_(service),
        method_(method),
        start_(exporter->RpcStarted(type, service, method)) {}
  // To gRPC's status, counted.
  grpc::Status End(const absl::Status& status) {
    exporter_->RpcHandled(type_, service_, method_, status.code(), start_);
    return ToGrpcStatus(status);
  }

 private:
  Exporter* exporter_;
  const char* type_;
  const char* service_;
  const char* method_;
  absl::Duration start_;
};

// Holds one of a bounded number of places.
class Place {
 public:
  Place(std::atomic<int>* taken, int limit) : taken_(taken) {
    held_ = taken_->fetch_add(1) < limit;
  }
  ~Place() { taken_->fetch_sub(1); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  absl::Status status() const {
    return held_ ? absl::OkStatus()
                 : absl::ResourceExhaustedError(
                       "too many streams are open: try again later");
  }

 private:
  std::atomic<int>* taken_;
  bool held_;
};

template <typename Message>
absl::Status Take(absl::StatusOr<Message> answer, Message* response) {
  if (!answer.ok()) return answer.status();
  *response = *std::move(answer);
  return absl::OkStatus();
}

absl::Status ClientGone() { return absl::CancelledError("the client is gone"); }

class JobServiceImpl final : public v1::JobService::Service {
 public:
  JobServiceImpl(Coordinator* coordinator, Exporter* exporter, ServerInfo info)
      : coordinator_(coordinator), exporter_(exporter), info_(std::move(info)) {
    for (const char* method :
         {"PlanJob", "CreateJob", "CheckJob", "GetJob", "ListJobs", "CancelJob",
          "SwitchPolicy", "DeleteJob", "ExportJob", "PlanGraph",
          "CheckSchedule", "GetServer"}) {
      exporter->RpcKnown(kUnary, kJobService, method);
    }
    for (const char* method :
         {"WatchJob", "ListSteps", "StreamLogs", "SampleJob"}) {
      exporter->RpcKnown(kServerStream, kJobService, method);
    }
  }

  grpc::Status PlanJob(grpc::ServerContext* context,
                       const v1::PlanJobRequest* request,
                       v1::PlanJobResponse* response) override {
    return Count("PlanJob").End(
        Take(coordinator_->PlanJob(
                 *request, [context] { return context->IsCancelled(); }),
             response));
  }
  grpc::Status CreateJob(grpc::ServerContext*,
                         const v1::CreateJobRequest* request,
                         v1::Job* response) override {
    return Count("CreateJob")
        .End(Take(coordinator_->CreateJob(*request), response));
  }
  grpc::Status CheckJob(grpc::ServerContext*,
                        const v1::CheckJobRequest* request,
                        v1::CheckJobResponse*) override {
    return Count("CheckJob").End(coordinator_->CheckJob(*request));
  }
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::Job* response) override {
    return Count("GetJob").End(Take(coordinator_->GetJob(*request), response));
  }
  grpc::Status ListJobs(grpc::ServerContext*,
                        const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    return Count("ListJobs")
        .End(Take(coordinator_->ListJobs(*request), response));
  }
  grpc::Status CancelJob(grpc::ServerContext*,
                         const v1::CancelJobRequest* request,
                         v1::Job* response) override {
    return Count("CancelJob")
        .End(Take(coordinator_->CancelJob(*request), response));
  }
  grpc::Status SwitchPolicy(grpc::ServerContext*,
                            const v1::SwitchPolicyRequest* request,
                            v1::SwitchPolicyResponse* response) override {
    return Count("SwitchPolicy")
        .End(Take(coordinator_->SwitchPolicy(*request), response));
  }
  grpc::Status DeleteJob(grpc::ServerContext*,
                         const v1::DeleteJobRequest* request,
                         v1::DeleteJobResponse*) override {
    return Count("DeleteJob").End(coordinator_->DeleteJob(*request));
  }
  grpc::Status ExportJob(grpc::ServerContext* context,
                         const v1::ExportJobRequest* request,
                         v1::ExportJobResponse* response) override {
    CountedCall call = Count("ExportJob");
    return call.End(
        Take(coordinator_->ExportJob(
                 *request, [context] { return context->IsCancelled(); }),
             response));
  }
  grpc::Status PlanGraph(grpc::ServerContext* context,
                         const v1::PlanGraphRequest* request,
                         v1::PlanGraphResponse* response) override {
    CountedCall call = Count("PlanGraph");
    return call.End(Take(
        graphs_.Plan(*request, [context] { return context->IsCancelled(); }),
        response));
  }
  grpc::Status CheckSchedule(grpc::ServerContext*,
                             const v1::CheckScheduleRequest* request,
                             v1::CheckScheduleResponse* response) override {
    return Count("CheckSchedule").End(Take(graphs_.Check(*request), response));
  }
  grpc::Status GetServer(grpc::ServerContext*, const v1::GetServerRequest*,
                         v1::Server* response) override {
    CountedCall call = Count("GetServer");
    response->set_version(info_.version);
    response->set_pid(info_.pid);
    response->set_metrics_address(info_.metrics_address);
    response->set_state_directory(info_.state_directory);
    response->mutable_start_time()->set_seconds(
        absl::ToUnixSeconds(info_.start_time));
    for (const Backend& backend : info_.backends()) {
      *response->add_backends() = BackendToMessage(backend);
    }
    return call.End(absl::OkStatus());
  }
  grpc::Status WatchJob(grpc::ServerContext* context,
                        const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::JobEvent>* writer) override {
    return CountStream("WatchJob").End(Watch(context, *request, writer));
  }
  grpc::Status ListSteps(grpc::ServerContext* context,
                         const v1::ListStepsRequest* request,
                         grpc::ServerWriter<v1::Step>* writer) override {
    return CountStream("ListSteps").End(Steps(context, *request, writer));
  }
  grpc::Status StreamLogs(grpc::ServerContext* context,
                          const v1::StreamLogsRequest* request,
                          grpc::ServerWriter<v1::LogChunk>* writer) override {
    return CountStream("StreamLogs").End(Logs(context, *request, writer));
  }
  grpc::Status SampleJob(grpc::ServerContext* context,
                         const v1::SampleJobRequest* request,
                         grpc::ServerWriter<v1::SampleChunk>* writer) override {
    return CountStream("SampleJob")
        .End(coordinator_->SampleJob(
            *request,
            {.on_chunk =
                 [writer](const v1::SampleChunk& chunk) {
                   return writer->Write(chunk);
                 },
             .is_cancelled = [context] { return context->IsCancelled(); }}));
  }

 private:
  CountedCall Count(const char* method) {
    return CountedCall(exporter_, kUnary, kJobService, method);
  }
  CountedCall CountStream(const char* method) {
    return CountedCall(exporter_, kServerStream, kJobService, method);
  }

  absl::Status Watch(grpc::ServerContext* context,
                     const v1::WatchJobRequest& request,
                     grpc::ServerWriter<v1::JobEvent>* writer) {
    const Place place(&followers_, kMaxFollowers);
    EBB_RETURN_IF_ERROR(place.status());
    int64_t after = std::max<int64_t>(0, request.after_sequence());
    while (!context->IsCancelled()) {
      // Before the look: a change after it wakes us.
      const int64_t seen = coordinator_->WaitForChange(-1, kFollowPeriod);
      EBB_ASSIGN_OR_RETURN(
          const JobEvents found,
          coordinator_->EventsAfter(request.id(), after, kStreamBatch));
      for (const v1::JobEvent& event : found.events) {
        if (!writer->Write(event)) return ClientGone();
        after = event.sequence();
      }
      if (found.ended) return absl::OkStatus();
      if (found.events.empty()) {
        coordinator_->WaitForChange(seen, kFollowPeriod);
      }
    }
    return ClientGone();
  }

  absl::Status Steps(grpc::ServerContext* context,
                     const v1::ListStepsRequest& request,
                     grpc::ServerWriter<v1::Step>* writer) {
    const Place place(&followers_, kMaxFollowers);
    EBB_RETURN_IF_ERROR(place.status());
    int64_t after = std::max<int64_t>(0, request.after_step());
    while (!context->IsCancelled()) {
      const int64_t seen = coordinator_->WaitForChange(-1, kFollowPeriod);
      EBB_ASSIGN_OR_RETURN(
          const JobSteps found,
          coordinator_->StepsAfter(request.id(), after, kStreamBatch));
      for (const v1::Step& step : found.steps) {
        if (!writer->Write(step)) return ClientGone();
        after = step.step();
      }
      if (found.ended) return absl::OkStatus();
      if (found.steps.empty()) {
        if (!request.follow()) return absl::OkStatus();
        coordinator_->WaitForChange(seen, kFollowPeriod);
      }
    }
    return ClientGone();
  }

  absl::Status Logs(grpc::ServerContext* context,
                    const v1::StreamLogsRequest& request,
                    grpc::ServerWriter<v1::LogChunk>* writer) {
    const Place place(&followers_, kMaxFollowers);
    EBB_RETURN_IF_ERROR(place.status());
    int64_t offset = std::max<int64_t>(0, request.offset());
    bool tail = request.tail_lines() > 0;
    int attempt = request.attempt();
    while (!context->IsCancelled()) {
      const int64_t seen = coordinator_->WaitForChange(-1, kFollowPeriod);
      // First whether the job has ended, then the rest of its log.
      EBB_ASSIGN_OR_RETURN(
          const LogLocation found,
          coordinator_->FindLog(request.id(), request.attempt(),
                                request.rank()));
      bool idle = true;
      if (found.attempt > 0) {
        if (found.attempt != attempt && attempt != 0) offset = 0;
        attempt = found.attempt;
        const std::string path = LogFilePath(found.directory, request.rank());
        if (tail) {
          EBB_ASSIGN_OR_RETURN(
              offset, TailOffset(path, request.tail_lines(), kMaxTailBytes));
          tail = false;
        }
        EBB_ASSIGN_OR_RETURN(std::string content,
                             ReadLog(path, offset, kLogChunkBytes));
        if (!content.empty()) {
          idle = false;
          offset += static_cast<int64_t>(content.size());
          v1::LogChunk chunk;
          chunk.set_content(std::move(content));
          chunk.set_next_offset(offset);
          chunk.set_attempt(attempt);
          if (!writer->Write(chunk)) return ClientGone();
        }
      }
      if (!idle) continue;
      if (found.ended || !request.follow()) return absl::OkStatus();
      coordinator_->WaitForChange(seen, kFollowPeriod);
    }
    return ClientGone();
  }

  Coordinator* const coordinator_;
  Exporter* const exporter_;
  const ServerInfo info_;
  GraphRequests graphs_;
  std::atomic<int> followers_ = 0;
};

using WorkerStream =
    grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;

// Writes what the coordinator queues, from a thread of its own: gRPC allows one
// reader and one writer at a time.
class StreamConnection final : public WorkerConnection {
 public:
  StreamConnection(grpc::ServerContext* context, WorkerStream* stream)
      : context_(context), stream_(stream), thread_([this] { Write(); }) {}
  ~StreamConnection() override { Join().IgnoreError(); }

  void Send(v1::CoordinatorMessage message) override {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
    if (queue_.size() >= kMaxQueued) {
      closing_ = cancel_ = true;
      return;
    }
    queue_.push_back(std::move(message));
  }

  void Close(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
    closing_ = cancel_ = true;
    status_ = status;
  }

  // Called by the handler when it has read its last message: afterwards neither
  // context nor stream is touched. OK, or why the coordinator closed it.
  absl::Status Join() {
    {
      absl::MutexLock lock(&mutex_);
      closing_ = true;
      // What is queued may still go out, but a peer that does not read must
      // not hold the thread for ever.
      const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return done_;
      };
      if (!mutex_.AwaitWithTimeout(absl::Condition(&done), absl::Seconds(1)) &&
          thread_.joinable()) {
        context_->TryCancel();
      }
    }
    if (thread_.joinable()) thread_.join();
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  void Write() {
    while (true) {
      v1::CoordinatorMessage message;
      {
        absl::MutexLock lock(&mutex_);
        const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return closing_ || !queue_.empty();
        };
        mutex_.Await(absl::Condition(&ready));
        if (queue_.empty()) {
          // Ends the handler's Read.
          if (cancel_) context_->TryCancel();
          done_ = true;
          return;
        }
        message = std::move(queue_.front());
        queue_.pop_front();
      }
      if (!stream_->Write(message)) {
        absl::MutexLock lock(&mutex_);
        queue_.clear();
        closing_ = true;
      }
    }
  }

  grpc::ServerContext* const context_;
  WorkerStream* const stream_;
  absl::Mutex mutex_;
  std::deque<v1::CoordinatorMessage> queue_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancel_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class WorkerServiceImpl final : public v1::WorkerService::Service {
 public:
  WorkerServiceImpl(Coordinator* coordinator, Exporter* exporter)
      : coordinator_(coordinator), exporter_(exporter) {
    exporter->RpcKnown(kBidiStream, kWorkerService, "Connect");
  }

  grpc::Status Connect(grpc::ServerContext* context,
                       WorkerStream* stream) override {
    return CountedCall(exporter_, kBidiStream, kWorkerService, "Connect")
        .End(Serve(context, stream));
  }

 private:
  absl::Status Serve(grpc::ServerContext* context, WorkerStream* stream) {
    const Place place(&streams_, kMaxWorkerStreams);
    EBB_RETURN_IF_ERROR(place.status());
    v1::WorkerMessage first;
    if (!stream->Read(&first)) return ClientGone();
    const auto connection = std::make_shared<StreamConnection>(context, stream);
    absl::Status status = coordinator_->Connect(first, connection);
    v1::WorkerMessage message;
    while (status.ok() && stream->Read(&message)) {
      status = coordinator_->Receive(message, connection.get());
      message.Clear();
    }
    coordinator_->Disconnect(first, connection.get());
    const absl::Status closed = connection->Join();
    if (!status.ok()) {
      EBB_LOG(WARNING) << "a worker was sent away: " << status.message();
      return status;
    }
    return closed;
  }

  Coordinator* const coordinator_;
  Exporter* const exporter_;
  std::atomic<int> streams_ = 0;
};

}  // namespace

struct Services::State {
  State(Coordinator* coordinator, Exporter* exporter, ServerInfo info)
      : jobs(coordinator, exporter, std::move(info)),
        workers(coordinator, exporter) {}

  JobServiceImpl jobs;
  WorkerServiceImpl workers;
  std::unique_ptr<grpc::Server> server;
};

Services::Services() = default;
Services::~Services() { Shutdown(absl::ZeroDuration()); }

absl::StatusOr<std::unique_ptr<Services>> Services::Start(
    Coordinator* coordinator, Exporter* exporter, ServerInfo info) {
  grpc::EnableDefaultHealthCheckService(true);
  std::unique_ptr<Services> services(new Services);
  services->state_ =
      std::make_unique<State>(coordinator, exporter, std::move(info));
  grpc::ServerBuilder builder;
  builder.RegisterService(&services->state_->jobs);
  builder.RegisterService(&services->state_->workers);
  builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  grpc::ResourceQuota quota("ebbd");
  quota.SetMaxThreads(kMaxThreads);
  builder.SetResourceQuota(quota);
  // Clients may ask every 20 s whether the connection lives, with calls open.
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 20000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  services->state_->server = builder.BuildAndStart();
  if (services->state_->server == nullptr) {
    return absl::InternalError("the gRPC server could not start");
  }
  return services;
}

void Services::AddConnection(int fd) {
  grpc::AddInsecureChannelFromFd(state_->server.get(), fd);
}

void Services::Shutdown(absl::Duration grace) {
  if (state_ == nullptr || state_->server == nullptr) return;
  if (auto* health = state_->server->GetHealthCheckService()) {
    health->SetServingStatus(false);
  }
  state_->server->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  state_->server.reset();
}

}  // namespace ebb
