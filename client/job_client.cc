// See job_client.h.
#include "client/job_client.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/socket_trouble.h"
#include "grpcpp/grpcpp.h"
#include "kernels/status.h"
#include "proto/job_service.grpc.pb.h"
#include "proto/job_service.pb.h"
#include "proto/rpc_status.h"

namespace ebb {
namespace {

// Keepalive pings, only while a call is open: a follow call must notice a
// coordinator that hangs. Servers permit pings from 20 seconds on.
constexpr int kKeepaliveMs = 60'000;

constexpr int kConnectMs = 20'000;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const CallTiming& timing) {
  grpc::ChannelArguments arguments;
  // gRPC would send the socket's path as the authority, which is no host name.
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  // A plan of a large job comes with its whole program text.
  arguments.SetMaxReceiveMessageSize(256 << 20);
  // A coordinator that comes back is met at once: our own retries pace it.
  arguments.SetInt(
      GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
      static_cast<int>(absl::ToInt64Milliseconds(timing.first_backoff)));
  // This is also how long connecting may take: a coordinator on a busy machine
  // is slow to greet, one that is gone refuses at once.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(
      GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
      static_cast<int>(absl::ToInt64Milliseconds(timing.largest_backoff)));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(),
                                   arguments);
}

// An UNAVAILABLE that is the address's gets words for people; what a
// coordinator itself says stays.
absl::Status Explain(const absl::Status& status, absl::string_view target) {
  if (!absl::IsUnavailable(status)) return status;
  const std::string trouble =
      FindSocketTrouble(std::string(absl::StripPrefix(target, "unix:")));
  if (trouble.empty()) return status;
  return absl::UnavailableError(
      absl::StrCat("no coordinator answers at ", target, ": ", trouble));
}

}  // namespace

bool IsFinal(const v1::Job& job) {
  return job.state() == v1::STATE_SUCCEEDED ||
         job.state() == v1::STATE_FAILED || job.state() == v1::STATE_CANCELLED;
}

class JobClient::Impl {
 public:
  Impl(Resolver resolve, CallTiming timing)
      : resolve_(std::move(resolve)), timing_(timing) {}

  const CallTiming& timing() const { return timing_; }

  // Calls `method` of the stub once, or with `retry` until the answer is not
  // UNAVAILABLE.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(
      grpc::Status (v1::JobService::StubInterface::*method)(
          grpc::ClientContext*, const Request&, Response*),
      const Request& request, bool retry) {
    absl::Duration backoff = timing_.first_backoff;
    for (int attempt = 1;; ++attempt) {
      Response response;
      const absl::Status status =
          CallOnce(method, request, timing_.call_deadline, &response);
      if (status.ok()) return response;
      if (!absl::IsUnavailable(status) || !retry ||
          attempt >= timing_.num_attempts || !Wait(&backoff)) {
        return status;
      }
    }
  }

  template <typename Request, typename Response>
  absl::Status CallOnce(grpc::Status (v1::JobService::StubInterface::*method)(
                            grpc::ClientContext*, const Request&, Response*),
                        const Request& request, absl::Duration deadline,
                        Response* response) {
    EBB_ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection,
                         Connect());
    OpenCall call(this, deadline);
    return Explain(call.Result((connection->stub.get()->*method)(
                       &call.context, request, response)),
                   connection->target);
  }

  // Reads one stream to its end, once.
  absl::Status StreamOnce(
      const std::function<absl::Status(v1::JobService::StubInterface&,
                                       grpc::ClientContext*)>& read_stream) {
    EBB_ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection,
                         Connect());
    OpenCall call(this, timing_.follow_deadline);
    return Explain(read_stream(*connection->stub, &call.context),
                   connection->target);
  }

  // Runs `read_stream`, which reads one stream to its end, again and again
  // until it says true: complete. It is given `progress`, to be called for
  // every message.
  absl::Status Follow(
      const std::function<absl::StatusOr<bool>(
          v1::JobService::StubInterface&, grpc::ClientContext*,
          const std::function<void()>& progress)>& read_stream) {
    absl::Duration backoff = timing_.first_backoff;
    absl::Time away_since = absl::InfiniteFuture();
    while (true) {
      std::string target;
      const absl::StatusOr<bool> complete = [&]() -> absl::StatusOr<bool> {
        EBB_ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection,
                             Connect());
        target = connection->target;
        OpenCall call(this, timing_.follow_deadline);
        const auto progress = [&] {
          if (away_since < absl::InfiniteFuture()) {
            Notice("connected to the coordinator again");
          }
          away_since = absl::InfiniteFuture();
          backoff = timing_.first_backoff;
        };
        return call.FollowResult(
            read_stream(*connection->stub, &call.context, progress));
      }();
      if (complete.ok() && *complete) return absl::OkStatus();
      if (cancelled()) return absl::CancelledError("cancelled");
      if (absl::IsDeadlineExceeded(complete.status())) continue;
      if (!complete.ok() && !absl::IsUnavailable(complete.status())) {
        return complete.status();
      }
      const absl::Time now = absl::Now();
      if (away_since == absl::InfiniteFuture()) {
        away_since = now;
        Notice(absl::StrCat("lost the coordinator, trying again for ",
                            absl::FormatDuration(timing_.reconnect)));
      }
      if (now - away_since > timing_.reconnect) {
        return complete.ok() ? absl::UnavailableError(
                                   "the coordinator ended the stream early")
                             : Explain(complete.status(), target);
      }
      if (!Wait(&backoff)) return absl::CancelledError("cancelled");
    }
  }

  void set_on_notice(std::function<void(absl::string_view)> on_notice) {
    on_notice_ = std::move(on_notice);
  }

  void Cancel() {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    for (grpc::ClientContext* context : open_) context->TryCancel();
  }

  bool cancelled() {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

 private:
  struct Connection {
    std::string target;
    std::unique_ptr<v1::JobService::StubInterface> stub;
  };

  // A call's context, known to Cancel while the call is open.
  struct OpenCall {
    OpenCall(Impl* impl, absl::Duration deadline) : impl(impl) {
      context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
      absl::MutexLock lock(&impl->mutex_);
      impl->open_.insert(&context);
      if (impl->cancelled_) context.TryCancel();
    }
    ~OpenCall() {
      absl::MutexLock lock(&impl->mutex_);
      impl->open_.erase(&context);
    }

    absl::Status Result(const grpc::Status& status) {
      const absl::Status result = FromGrpcStatus(status);
      if (absl::IsUnavailable(result)) impl->Disconnect();
      return result;
    }

    // A coordinator that shuts down cancels its streams: for who follows, that
    // is one that went away.
    absl::StatusOr<bool> FollowResult(absl::StatusOr<bool> complete) {
      if (absl::IsCancelled(complete.status())) {
        return absl::UnavailableError(complete.status().message());
      }
      if (absl::IsUnavailable(complete.status())) impl->Disconnect();
      return complete;
    }

    Impl* impl;
    grpc::ClientContext context;
  };

  absl::StatusOr<std::shared_ptr<Connection>> Connect() {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return absl::CancelledError("cancelled");
    if (fresh_) return connection_;
    EBB_ASSIGN_OR_RETURN(const std::string target, resolve_());
    if (connection_ == nullptr || connection_->target != target) {
      connection_ = std::make_shared<Connection>();
      connection_->target = target;
      connection_->stub = v1::JobService::NewStub(MakeChannel(target, timing_));
    }
    fresh_ = true;
    return connection_;
  }

  // The next call asks for the address again.
  void Disconnect() {
    absl::MutexLock lock(&mutex_);
    fresh_ = false;
  }

  // Waits and doubles the backoff; false: cancelled meanwhile.
  bool Wait(absl::Duration* backoff) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&cancelled_), *backoff);
    *backoff = std::min(2 * *backoff, timing_.largest_backoff);
    return !cancelled_;
  }

  void Notice(absl::string_view text) {
    if (on_notice_) on_notice_(text);
  }

  const Resolver resolve_;
  const CallTiming timing_;
  std::function<void(absl::string_view)> on_notice_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // connection_ needs no new address.
  bool fresh_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mutex_);
  std::set<grpc::ClientContext*> open_ ABSL_GUARDED_BY(mutex_);
};

JobClient::JobClient(Resolver resolve, CallTiming timing)
    : impl_(std::make_unique<Impl>(std::move(resolve), timing)) {}

JobClient::~JobClient() = default;

absl::StatusOr<v1::Server> JobClient::GetServer() {
  return impl_->Call(&v1::JobService::StubInterface::GetServer,
                     v1::GetServerRequest(), true);
}

absl::StatusOr<v1::Server> JobClient::ProbeServer(absl::Duration deadline) {
  v1::Server server;
  EBB_RETURN_IF_ERROR(impl_->CallOnce(&v1::JobService::StubInterface::GetServer,
                                      v1::GetServerRequest(), deadline,
                                      &server));
  return server;
}

absl::StatusOr<v1::PlanJobResponse> JobClient::PlanJob(
    const v1::PlanJobRequest& request) {
  if (!request.profile()) {
    return impl_->Call(&v1::JobService::StubInterface::PlanJob, request, true);
  }
  // Takes as long as some steps of the job.
  v1::PlanJobResponse response;
  EBB_RETURN_IF_ERROR(impl_->CallOnce(&v1::JobService::StubInterface::PlanJob,
                                      request, impl_->timing().follow_deadline,
                                      &response));
  return response;
}

absl::StatusOr<v1::Job> JobClient::CreateJob(
    const v1::CreateJobRequest& request) {
  return impl_->Call(&v1::JobService::StubInterface::CreateJob, request,
                     !request.request_id().empty());
}

absl::Status JobClient::CheckJob(const v1::JobSpec& spec) {
  v1::CheckJobRequest request;
  *request.mutable_spec() = spec;
  return impl_->Call(&v1::JobService::StubInterface::CheckJob, request, true)
      .status();
}

absl::StatusOr<v1::Job> JobClient::GetJob(const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(id);
  return impl_->Call(&v1::JobService::StubInterface::GetJob, request, true);
}

absl::StatusOr<v1::ListJobsResponse> JobClient::ListJobs(
    const v1::ListJobsRequest& request) {
  return impl_->Call(&v1::JobService::StubInterface::ListJobs, request, true);
}

absl::StatusOr<v1::Job> JobClient::CancelJob(const std::string& id, bool now) {
  v1::CancelJobRequest request;
  request.set_id(id);
  request.set_now(now);
  return impl_->Call(&v1::JobService::StubInterface::CancelJob, request, false);
}

absl::StatusOr<v1::SwitchPolicyResponse> JobClient::SwitchPolicy(
    const v1::SwitchPolicyRequest& request) {
  // Asked twice it is done once.
  return impl_->Call(&v1::JobService::StubInterface::SwitchPolicy, request,
                     true);
}

absl::Status JobClient::DeleteJob(const std::string& id) {
  v1::DeleteJobRequest request;
  request.set_id(id);
  return impl_->Call(&v1::JobService::StubInterface::DeleteJob, request, false)
      .status();
}

absl::StatusOr<v1::ExportJobResponse> JobClient::ExportJob(
    const v1::ExportJobRequest& request) {
  v1::ExportJobResponse response;
  EBB_RETURN_IF_ERROR(impl_->CallOnce(&v1::JobService::StubInterface::ExportJob,
                                      request, impl_->timing().follow_deadline,
                                      &response));
  return response;
}

absl::StatusOr<v1::PlanGraphResponse> JobClient::PlanGraph(
    const v1::PlanGraphRequest& request, absl::Duration deadline) {
  v1::PlanGraphResponse response;
  EBB_RETURN_IF_ERROR(impl_->CallOnce(&v1::JobService::StubInterface::PlanGraph,
                                      request, deadline, &response));
  return response;
}

absl::StatusOr<v1::CheckScheduleResponse> JobClient::CheckSchedule(
    const v1::CheckScheduleRequest& request) {
  return impl_->Call(&v1::JobService::StubInterface::CheckSchedule, request,
                     true);
}

absl::Status JobClient::ListSteps(
    const std::string& id, int64_t after_step,
    const std::function<void(const v1::Step&)>& on_step) {
  v1::ListStepsRequest request;
  request.set_id(id);
  request.set_after_step(after_step);
  return impl_->Follow([&](auto& stub, grpc::ClientContext* context,
                           const auto& progress) -> absl::StatusOr<bool> {
    auto reader = stub.ListSteps(context, request);
    v1::Step step;
    while (reader->Read(&step)) {
      progress();
      request.set_after_step(step.step());
      on_step(step);
    }
    EBB_RETURN_IF_ERROR(FromGrpcStatus(reader->Finish()));
    return true;
  });
}

absl::StatusOr<v1::Job> JobClient::FollowSteps(
    const std::string& id, int64_t after_step,
    const std::function<void(const v1::Step&)>& on_step) {
  v1::ListStepsRequest request;
  request.set_id(id);
  request.set_after_step(after_step);
  request.set_follow(true);
  v1::Job job;
  EBB_RETURN_IF_ERROR(
      impl_->Follow([&](auto& stub, grpc::ClientContext* context,
                        const auto& progress) -> absl::StatusOr<bool> {
        auto reader = stub.ListSteps(context, request);
        v1::Step step;
        while (reader->Read(&step)) {
          progress();
          request.set_after_step(step.step());
          on_step(step);
        }
        EBB_RETURN_IF_ERROR(FromGrpcStatus(reader->Finish()));
        // The stream ends with the job, or with a coordinator that stops.
        EBB_ASSIGN_OR_RETURN(job, GetJob(id));
        return IsFinal(job);
      }));
  return job;
}

absl::StatusOr<v1::Job> JobClient::FollowJob(
    const std::string& id, int64_t after_sequence,
    const std::function<void(const v1::JobEvent&)>& on_event) {
  v1::WatchJobRequest request;
  request.set_id(id);
  request.set_after_sequence(after_sequence);
  v1::Job job;
  EBB_RETURN_IF_ERROR(
      impl_->Follow([&](auto& stub, grpc::ClientContext* context,
                        const auto& progress) -> absl::StatusOr<bool> {
        auto reader = stub.WatchJob(context, request);
        v1::JobEvent event;
        while (reader->Read(&event)) {
          progress();
          request.set_after_sequence(event.sequence());
          if (event.has_job()) job = event.job();
          on_event(event);
        }
        EBB_RETURN_IF_ERROR(FromGrpcStatus(reader->Finish()));
        return IsFinal(job);
      }));
  return job;
}

absl::Status JobClient::StreamLogs(
    const v1::StreamLogsRequest& first_request,
    const std::function<void(const v1::LogChunk&)>& on_chunk) {
  v1::StreamLogsRequest request = first_request;
  return impl_->Follow([&](auto& stub, grpc::ClientContext* context,
                           const auto& progress) -> absl::StatusOr<bool> {
    auto reader = stub.StreamLogs(context, request);
    v1::LogChunk chunk;
    while (reader->Read(&chunk)) {
      progress();
      request.set_attempt(chunk.attempt());
      request.set_offset(chunk.next_offset());
      request.clear_tail_lines();
      on_chunk(chunk);
    }
    EBB_RETURN_IF_ERROR(FromGrpcStatus(reader->Finish()));
    if (!request.follow()) return true;
    EBB_ASSIGN_OR_RETURN(const v1::Job job, GetJob(request.id()));
    return IsFinal(job);
  });
}

absl::Status JobClient::SampleJob(
    const v1::SampleJobRequest& request,
    const std::function<void(const v1::SampleChunk&)>& on_chunk) {
  return impl_->StreamOnce([&](auto& stub, grpc::ClientContext* context) {
    auto reader = stub.SampleJob(context, request);
    v1::SampleChunk chunk;
    while (reader->Read(&chunk)) on_chunk(chunk);
    return FromGrpcStatus(reader->Finish());
  });
}

void JobClient::set_on_notice(
    std::function<void(absl::string_view)> on_notice) {
  impl_->set_on_notice(std::move(on_notice));
}

void JobClient::Cancel() { impl_->Cancel(); }

}  // namespace ebb
