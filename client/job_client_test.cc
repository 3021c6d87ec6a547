// Deadlines, retries and following, against a service on a real socket.
#include "client/job_client.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "client/testing/fake_job_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job_service.pb.h"

namespace ebb {
namespace {

using testing::ElementsAre;

CallTiming FastTiming() {
  CallTiming timing;
  timing.first_backoff = absl::Milliseconds(1);
  timing.largest_backoff = absl::Milliseconds(4);
  timing.reconnect = absl::Seconds(20);
  return timing;
}

v1::Job MakeJob(v1::State state) {
  v1::Job job;
  job.set_id("a1b2c3d4");
  job.set_state(state);
  return job;
}

v1::JobEvent StateEvent(v1::State state) {
  v1::JobEvent event;
  *event.mutable_job() = MakeJob(state);
  return event;
}

v1::Step MakeStep(int64_t number) {
  v1::Step step;
  step.set_step(number);
  return step;
}

class JobClientTest : public testing::Test {
 protected:
  JobClientTest() : service_("1.2.3") {
    std::string name = testing::TempDir() + "job_client_test.XXXXXX";
    directory_ = mkdtemp(name.data());
    StartAt("socket");
    service_.SetJob(MakeJob(v1::STATE_RUNNING));
    client_ = MakeClient(FastTiming());
  }
  ~JobClientTest() override {
    service_.Stop();
    std::filesystem::remove_all(directory_);
  }

  std::unique_ptr<JobClient> MakeClient(const CallTiming& timing) {
    return std::make_unique<JobClient>(
        [this]() -> absl::StatusOr<std::string> {
          absl::MutexLock lock(&mutex_);
          return absl::StrCat("unix:", socket_);
        },
        timing);
  }

  // Starts the service at a path of this name, for clients to come.
  void StartAt(absl::string_view name) {
    std::string socket = absl::StrCat(directory_, "/", name);
    {
      absl::MutexLock lock(&mutex_);
      socket_ = socket;
    }
    service_.Start(socket);
  }

  std::string directory_;
  absl::Mutex mutex_;
  // Clients that lost the service ask for it on threads of their own.
  std::string socket_ ABSL_GUARDED_BY(mutex_);
  FakeJobService service_;
  std::unique_ptr<JobClient> client_;
};

TEST_F(JobClientTest, IdempotentCallsRetryWhileUnavailable) {
  for (int i = 0; i < 4; ++i) {
    service_.FailNext("GetServer", absl::UnavailableError("not yet"));
  }
  const auto server = client_->GetServer();
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(server->version(), "1.2.3");
  EXPECT_EQ(service_.NumCalls("GetServer"), 5);
}

TEST_F(JobClientTest, RetriesEnd) {
  for (int i = 0; i < 5; ++i) {
    service_.FailNext("GetServer", absl::UnavailableError("never"));
  }
  EXPECT_TRUE(absl::IsUnavailable(client_->GetServer().status()));
  EXPECT_EQ(service_.NumCalls("GetServer"), 5);
}

TEST_F(JobClientTest, OtherErrorsAreNotRetried) {
  service_.FailNext("GetJob", absl::InternalError("bug"));
  EXPECT_TRUE(absl::IsInternal(client_->GetJob("a1b2c3d4").status()));
  EXPECT_EQ(service_.NumCalls("GetJob"), 1);
}

TEST_F(JobClientTest, CreateRetriesOnlyWithARequestId) {
  v1::CreateJobRequest request;
  service_.FailNext("CreateJob", absl::UnavailableError("lost"));
  EXPECT_TRUE(absl::IsUnavailable(client_->CreateJob(request).status()));
  EXPECT_EQ(service_.NumCalls("CreateJob"), 1);
  service_.FailNext("CreateJob", absl::UnavailableError("lost"));
  request.set_request_id("once");
  EXPECT_TRUE(client_->CreateJob(request).ok());
  EXPECT_EQ(service_.NumCalls("CreateJob"), 3);
  EXPECT_EQ(service_.created()[2].request_id(), "once");
}

TEST_F(JobClientTest, CancelIsNotRepeated) {
  service_.FailNext("CancelJob", absl::UnavailableError("lost"));
  EXPECT_TRUE(
      absl::IsUnavailable(client_->CancelJob("a1b2c3d4", true).status()));
  EXPECT_EQ(service_.NumCalls("CancelJob"), 1);
}

TEST_F(JobClientTest, NobodyThereIsUnavailable) {
  JobClient client([] { return "unix:/nonexistent/socket"; }, FastTiming());
  EXPECT_TRUE(absl::IsUnavailable(client.GetServer().status()));
}

TEST_F(JobClientTest, CallsHaveADeadline) {
  // Someone listens and never answers.
  const std::string path = directory_ + "/silent";
  const int silent = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(silent, reinterpret_cast<const sockaddr*>(&address),
                 sizeof(address)),
            0);
  ASSERT_EQ(listen(silent, 1), 0);
  CallTiming timing = FastTiming();
  timing.call_deadline = absl::Milliseconds(20);
  JobClient client([&] { return absl::StrCat("unix:", path); }, timing);
  const absl::Status status = client.GetServer().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  close(silent);
}

TEST_F(JobClientTest, FollowedEventsComeOnceOverBrokenStreams) {
  for (const v1::State state : {v1::STATE_QUEUED, v1::STATE_STARTING,
                                v1::STATE_RUNNING, v1::STATE_SUCCEEDED}) {
    service_.AddEvent("a1b2c3d4", StateEvent(state));
  }
  service_.BreakNextStream("WatchJob", 2);
  std::vector<int64_t> sequences;
  const auto end =
      client_->FollowJob("a1b2c3d4", 0, [&](const v1::JobEvent& event) {
        sequences.push_back(event.sequence());
      });
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->state(), v1::STATE_SUCCEEDED);
  EXPECT_THAT(sequences, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(service_.NumCalls("WatchJob"), 2);
}

TEST_F(JobClientTest, FollowingSurvivesARestartOfTheCoordinator) {
  service_.AddStep("a1b2c3d4", MakeStep(1));
  std::vector<std::string> notices;
  client_->set_on_notice(
      [&](absl::string_view text) { notices.emplace_back(text); });
  absl::Notification first_step;
  std::vector<int64_t> steps;
  absl::StatusOr<v1::Job> end;
  std::thread follower([&] {
    end = client_->FollowSteps("a1b2c3d4", 0, [&](const v1::Step& step) {
      steps.push_back(step.step());
      if (step.step() == 1) first_step.Notify();
    });
  });
  first_step.WaitForNotification();
  service_.Stop();
  // A restarted coordinator may listen elsewhere.
  service_.AddStep("a1b2c3d4", MakeStep(2));
  StartAt("other");
  service_.AwaitCalls("ListSteps", 2);
  service_.AddStep("a1b2c3d4", MakeStep(3));
  service_.SetJob(MakeJob(v1::STATE_FAILED));
  follower.join();
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->state(), v1::STATE_FAILED);
  EXPECT_THAT(steps, ElementsAre(1, 2, 3));
  EXPECT_THAT(notices, ElementsAre("lost the coordinator, trying again for 20s",
                                   "connected to the coordinator again"));
}

TEST_F(JobClientTest, FollowingGivesUpWhenTheCoordinatorStaysAway) {
  CallTiming timing = FastTiming();
  timing.reconnect = absl::Milliseconds(20);
  const auto client = MakeClient(timing);
  service_.Stop();
  const auto end = client->FollowJob("a1b2c3d4", 0, [](const v1::JobEvent&) {});
  EXPECT_TRUE(absl::IsUnavailable(end.status())) << end.status();
}

TEST_F(JobClientTest, FollowingEndsAtOtherErrors) {
  EXPECT_TRUE(absl::IsNotFound(
      client_->FollowSteps("nonesuch", 0, [](const v1::Step&) {}).status()));
  EXPECT_EQ(service_.NumCalls("ListSteps"), 1);
}

TEST_F(JobClientTest, AFollowCallThatReachesItsDeadlineGoesOn) {
  CallTiming timing = FastTiming();
  timing.follow_deadline = absl::Milliseconds(30);
  const auto client = MakeClient(timing);
  service_.AddEvent("a1b2c3d4", StateEvent(v1::STATE_RUNNING));
  absl::StatusOr<v1::Job> end;
  std::vector<int64_t> sequences;
  std::thread follower([&] {
    end = client->FollowJob("a1b2c3d4", 0, [&](const v1::JobEvent& event) {
      sequences.push_back(event.sequence());
    });
  });
  service_.AwaitCalls("WatchJob", 3);
  service_.AddEvent("a1b2c3d4", StateEvent(v1::STATE_CANCELLED));
  follower.join();
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->state(), v1::STATE_CANCELLED);
  EXPECT_THAT(sequences, ElementsAre(1, 2));
}

TEST_F(JobClientTest, LogsGoOnAtTheirOffset) {
  service_.SetLog("a1b2c3d4", "one\ntwo\nthree\n");
  service_.BreakNextStream("StreamLogs", 2);
  v1::StreamLogsRequest request;
  request.set_id("a1b2c3d4");
  std::string text;
  const absl::Status status = client_->StreamLogs(
      request, [&](const v1::LogChunk& chunk) { text += chunk.content(); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(text, "one\ntwo\nthree\n");
  EXPECT_EQ(service_.NumCalls("StreamLogs"), 2);
}

TEST_F(JobClientTest, CancelEndsWhatIsOpenAndWhatComes) {
  absl::StatusOr<v1::Job> end;
  std::thread follower([&] {
    end = client_->FollowJob("a1b2c3d4", 0, [](const v1::JobEvent&) {});
  });
  service_.AwaitCalls("WatchJob", 1);
  client_->Cancel();
  follower.join();
  EXPECT_TRUE(absl::IsCancelled(end.status())) << end.status();
  EXPECT_TRUE(absl::IsCancelled(client_->GetServer().status()));
}

}  // namespace
}  // namespace ebb
