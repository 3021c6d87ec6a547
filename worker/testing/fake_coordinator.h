// A coordinator for tests of a rank's side: stores reports of one rank (job
// k3j2h1g0, attempt 2, rank 1), comes, goes, and comes back with what it had.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/worker_service.grpc.pb.h"

namespace ebb {

// Longest wait for something that should happen at once.
inline constexpr absl::Duration kPatience = absl::Seconds(30);

// What a coordinator keeps over restarts, and how it behaves.
class FakeCoordinator : public v1::WorkerService::Service {
 public:
  explicit FakeCoordinator(std::string address)
      : address_(std::move(address)) {}
  ~FakeCoordinator() override { Stop(); }

  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  // Ends the process, so to say: streams break.
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  // A stream is answered with this status at once.
  void Refuse(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    refusal_ = std::move(status);
  }
  void SetAcknowledging(bool acknowledging) {
    absl::MutexLock lock(&mutex_);
    acknowledging_ = acknowledging;
  }
  void SetAssignment(v1::Assignment assignment) {
    absl::MutexLock lock(&mutex_);
    assignment_ = std::move(assignment);
  }
  // Does not even answer a registration.
  void SetMute(bool mute) {
    absl::MutexLock lock(&mutex_);
    mute_ = mute;
  }
  // After every so many reports the stream is broken, without acknowledging
  // the last; 0: never.
  void BreakEvery(int reports) {
    absl::MutexLock lock(&mutex_);
    break_every_ = reports;
  }
  // Sends on the open stream.
  void Send(const v1::CoordinatorMessage& message) {
    absl::MutexLock lock(&mutex_);
    ASSERT_NE(stream_, nullptr);
    stream_->Write(message);
  }
  void Acknowledge() {
    v1::CoordinatorMessage message;
    {
      absl::MutexLock lock(&mutex_);
      message.mutable_acknowledge()->set_sequence(stored_.size());
    }
    Send(message);
  }

  // Waits until a condition over the getters below holds.
  bool Becomes(const std::function<bool()>& condition) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&condition), kPatience);
  }
  bool BecomesStored(size_t count) {
    return Becomes([this, count] { return stored_.size() >= count; });
  }

  // All of these are read inside Becomes or after Stop.
  std::vector<v1::WorkerMessage> stored_;  // by sequence, from 1
  std::vector<v1::Register> registrations_;
  int started_ = 0;     // Started messages
  int duplicates_ = 0;  // reports that were stored already
  int gaps_ = 0;        // reports that came too early
  bool gone_ = false;   // a stream has ended

 private:
  using Stream =
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;

  grpc::Status Connect(grpc::ServerContext*, Stream* stream) override {
    v1::WorkerMessage message;
    if (!stream->Read(&message)) return grpc::Status::OK;
    {
      absl::MutexLock lock(&mutex_);
      EXPECT_EQ(message.job_id(), "k3j2h1g0");
      EXPECT_EQ(message.attempt(), 2);
      EXPECT_EQ(message.rank(), 1);
      EXPECT_TRUE(message.has_register_());
      registrations_.push_back(message.register_());
      if (!refusal_.ok()) return refusal_;
      v1::CoordinatorMessage answer;
      if (message.register_().resumed()) {
        answer.mutable_acknowledge()->set_sequence(stored_.size());
      } else {
        *answer.mutable_assignment() = assignment_;
      }
      if (!mute_) stream->Write(answer);
      stream_ = stream;
    }
    for (int count = 1; stream->Read(&message); ++count) {
      absl::MutexLock lock(&mutex_);
      if (message.has_started()) {
        EXPECT_EQ(message.sequence(), 0);
        ++started_;
        continue;
      }
      int64_t expected = stored_.size() + 1;
      if (message.sequence() == expected) {
        stored_.push_back(message);
      } else if (message.sequence() < expected) {
        ++duplicates_;
      } else {
        ++gaps_;
      }
      if (break_every_ > 0 && count >= break_every_) break;
      if (acknowledging_) {
        v1::CoordinatorMessage answer;
        answer.mutable_acknowledge()->set_sequence(stored_.size());
        stream->Write(answer);
      }
    }
    absl::MutexLock lock(&mutex_);
    stream_ = nullptr;
    gone_ = true;
    return grpc::Status::OK;
  }

  const std::string address_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  v1::Assignment assignment_ ABSL_GUARDED_BY(mutex_);
  grpc::Status refusal_ ABSL_GUARDED_BY(mutex_);
  bool acknowledging_ ABSL_GUARDED_BY(mutex_) = true;
  bool mute_ ABSL_GUARDED_BY(mutex_) = false;
  int break_every_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ebb
