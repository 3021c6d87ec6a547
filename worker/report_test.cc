// The stream of reports against a coordinator in this process that comes, goes
// and comes back with what it had stored.
#include "worker/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "monitoring/fake_clock.h"
#include "proto/report_file.h"
#include "proto/worker_service.pb.h"
#include "worker/testing/fake_coordinator.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::RankReport StepReport(int64_t step) {
  v1::RankReport report;
  report.mutable_step()->set_step(step);
  return report;
}

v1::Finished Success(int64_t last_step) {
  v1::Finished finished;
  finished.set_last_step(last_step);
  return finished;
}

class Report : public ::testing::Test {
 protected:
  Report() {
    std::string pattern = "/tmp/ebb_report.XXXXXX";  // a socket's path is short
    directory_ = mkdtemp(pattern.data());
    options_.server = "unix:" + directory_ + "/socket";
    options_.job = "k3j2h1g0";
    options_.attempt = 2;
    options_.rank = 1;
    options_.version = "1.2.3";
    options_.report_file = ReportFilePath(directory_, 1);
    options_.first_backoff = absl::Milliseconds(1);
    options_.longest_backoff = absl::Milliseconds(4);
    options_.patience = kPatience;
    coordinator_ = std::make_unique<FakeCoordinator>(options_.server);
    v1::Assignment assignment;
    assignment.set_directory("/jobs/k3j2h1g0");
    coordinator_->SetAssignment(assignment);
  }
  ~Report() override {
    stream_.reset();
    coordinator_->Stop();
    std::filesystem::remove_all(directory_);
  }

  void Open() { stream_ = std::make_unique<ReportStream>(options_, &mailbox_); }
  // Opens to a running coordinator and takes the assignment.
  void OpenAssigned() {
    coordinator_->Start();
    Open();
    absl::StatusOr<v1::Assignment> assignment = stream_->AwaitAssignment();
    ASSERT_TRUE(assignment.ok()) << assignment.status();
    EXPECT_EQ(assignment->directory(), "/jobs/k3j2h1g0");
  }
  bool HasReportFile() const {
    return std::filesystem::exists(options_.report_file);
  }
  // Steps 1, 2, ... and, last, `finished` were stored, each once and in order.
  void ExpectAllStored(int64_t steps) {
    ASSERT_EQ(coordinator_->stored_.size(), steps + 1u);
    for (int64_t step = 1; step <= steps; ++step) {
      EXPECT_EQ(coordinator_->stored_[step - 1].report().step().step(), step);
    }
    EXPECT_EQ(coordinator_->stored_.back().finished().last_step(), steps);
    EXPECT_EQ(coordinator_->gaps_, 0);
  }

  std::string directory_;
  ReportStreamOptions options_;
  OrderMailbox mailbox_;
  std::unique_ptr<FakeCoordinator> coordinator_;
  std::unique_ptr<ReportStream> stream_;
};

TEST_F(Report, DeliversInOrderAndWaitsForTheLast) {
  OpenAssigned();
  for (int64_t step = 1; step <= 20; ++step) stream_->Report(StepReport(step));
  EXPECT_TRUE(stream_->Finish(Success(20)).ok());
  EXPECT_EQ(stream_->unacknowledged(), 0);
  stream_.reset();
  coordinator_->Stop();
  ExpectAllStored(20);
  EXPECT_EQ(coordinator_->duplicates_, 0);
  EXPECT_FALSE(HasReportFile());
  ASSERT_EQ(coordinator_->registrations_.size(), 1u);
  EXPECT_FALSE(coordinator_->registrations_[0].resumed());
  EXPECT_EQ(coordinator_->registrations_[0].pid(), getpid());
  EXPECT_EQ(coordinator_->registrations_[0].version(), "1.2.3");
}

TEST_F(Report, WaitsForACoordinatorThatIsNotThereYet) {
  Open();
  std::thread starter([&] { coordinator_->Start(); });
  EXPECT_TRUE(stream_->AwaitAssignment().ok());
  starter.join();
}

TEST_F(Report, RestartedCoordinatorGetsWhatItLacks) {
  OpenAssigned();
  v1::Backend backend;
  backend.set_kind("cpu");
  stream_->SetBackend(backend);
  stream_->Start({});
  for (int64_t step = 1; step <= 3; ++step) stream_->Report(StepReport(step));
  ASSERT_TRUE(coordinator_->BecomesStored(3));
  coordinator_->Stop();
  for (int64_t step = 4; step <= 6; ++step) stream_->Report(StepReport(step));
  coordinator_->Start();
  EXPECT_TRUE(stream_->Finish(Success(6)).ok());
  stream_.reset();
  coordinator_->Stop();
  ExpectAllStored(6);
  EXPECT_EQ(coordinator_->started_, 2);
  ASSERT_EQ(coordinator_->registrations_.size(), 2u);
  EXPECT_TRUE(coordinator_->registrations_[1].resumed());
  EXPECT_EQ(coordinator_->registrations_[1].backend().kind(), "cpu");
}

TEST_F(Report, StoredButUnacknowledgedIsNotSentAgain) {
  coordinator_->SetAcknowledging(false);
  OpenAssigned();
  for (int64_t step = 1; step <= 3; ++step) stream_->Report(StepReport(step));
  ASSERT_TRUE(coordinator_->BecomesStored(3));
  EXPECT_EQ(stream_->unacknowledged(), 3);
  coordinator_->Stop();
  coordinator_->SetAcknowledging(true);
  coordinator_->Start();  // answers the registration with 3
  EXPECT_TRUE(stream_->Finish(Success(3)).ok());
  stream_.reset();
  coordinator_->Stop();
  ExpectAllStored(3);
  EXPECT_EQ(coordinator_->duplicates_, 0);
}

TEST_F(Report, LosesNothingOnAStreamThatKeepsBreaking) {
  coordinator_->BreakEvery(7);
  OpenAssigned();
  for (int64_t step = 1; step <= 100; ++step) {
    stream_->Report(StepReport(step));
  }
  EXPECT_TRUE(coordinator_->BecomesStored(100));
  coordinator_->BreakEvery(0);
  EXPECT_TRUE(stream_->Finish(Success(100)).ok());
  stream_.reset();
  coordinator_->Stop();
  ExpectAllStored(100);
  EXPECT_GE(coordinator_->registrations_.size(), 100u / 7);
}

TEST_F(Report, LosesNothingOverManyRestarts) {
  OpenAssigned();
  std::thread trainer([&] {
    for (int64_t step = 1; step <= 400; ++step) {
      stream_->Report(StepReport(step));
      if (step % 20 == 0) absl::SleepFor(absl::Milliseconds(1));
    }
  });
  for (size_t restart = 1; restart <= 5; ++restart) {
    EXPECT_TRUE(coordinator_->BecomesStored(60 * restart));
    coordinator_->Stop();
    coordinator_->Start();
  }
  trainer.join();
  EXPECT_TRUE(stream_->Finish(Success(400)).ok());
  stream_.reset();
  coordinator_->Stop();
  ExpectAllStored(400);
}

TEST_F(Report, UnansweredRegistrationIsMadeAnew) {
  coordinator_->SetMute(true);
  coordinator_->Start();
  Open();
  EXPECT_TRUE(coordinator_->Becomes(
      [&] { return coordinator_->registrations_.size() == 1; }));
  coordinator_->Stop();
  coordinator_->SetMute(false);
  coordinator_->Start();
  EXPECT_TRUE(stream_->AwaitAssignment().ok());
  EXPECT_FALSE(coordinator_->registrations_[1].resumed());
}

TEST_F(Report, OrdersReachTheMailbox) {
  OpenAssigned();
  EXPECT_EQ(mailbox_.Take(), TrainerOrder::kNone);
  v1::CoordinatorMessage message;
  message.mutable_order()->set_kind(v1::Order::KIND_CHECKPOINT);
  coordinator_->Send(message);
  message.mutable_order()->set_kind(v1::Order::KIND_CANCEL);
  coordinator_->Send(message);
  absl::Time deadline = absl::Now() + kPatience;
  while (!mailbox_.cancelled() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(mailbox_.Take(), TrainerOrder::kCancel);
  EXPECT_EQ(mailbox_.Take(), TrainerOrder::kCheckpoint);
  EXPECT_EQ(mailbox_.Take(), TrainerOrder::kNone);
  EXPECT_TRUE(mailbox_.cancelled());
}

TEST_F(Report, SwitchesReachTheMailboxInOrderReadableOrNot) {
  OpenAssigned();
  v1::CoordinatorMessage message;
  message.mutable_order()->set_kind(v1::Order::KIND_SWITCH);
  v1::SwitchOrder& order = *message.mutable_order()->mutable_switch_order();
  order.set_number(4);
  order.mutable_plan()->set_policy("full");
  order.add_ladder()->set_policy("sqrt");
  order.set_at_step(9);
  order.set_offload_dir("/offload");
  coordinator_->Send(message);
  order.set_number(5);
  order.mutable_ladder(0)->set_policy("best");
  coordinator_->Send(message);
  std::vector<PlanSwitch> switches;
  const absl::Time deadline = absl::Now() + kPatience;
  while (switches.size() < 2 && absl::Now() < deadline) {
    for (PlanSwitch& come : mailbox_.TakeSwitches()) {
      switches.push_back(std::move(come));
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_EQ(switches.size(), 2u);
  EXPECT_EQ(switches[0].number, 4);
  EXPECT_EQ(switches[0].at_step, 9);
  EXPECT_EQ(switches[0].offload_directory, "/offload");
  ASSERT_TRUE(switches[0].plan.ok()) << switches[0].plan.status();
  EXPECT_EQ(switches[0].plan->policy, Policy::kFull);
  ASSERT_EQ(switches[0].ladder.size(), 1u);
  EXPECT_EQ(switches[0].ladder[0].policy, Policy::kSqrt);
  EXPECT_EQ(switches[1].number, 5);
  EXPECT_THAT(std::string(switches[1].plan.status().message()),
              HasSubstr("unknown policy: best"));
  EXPECT_TRUE(mailbox_.TakeSwitches().empty());
}

TEST_F(Report, RefusedRankGetsTheReason) {
  coordinator_->Refuse({grpc::StatusCode::FAILED_PRECONDITION,
                        "attempt 2 is not the current one"});
  coordinator_->Start();
  Open();
  absl::Status status = stream_->AwaitAssignment().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not the current one"));
}

TEST_F(Report, FencedRankStopsTraining) {
  OpenAssigned();
  stream_->Report(StepReport(1));
  coordinator_->Stop();
  coordinator_->Refuse({grpc::StatusCode::NOT_FOUND, "no such job"});
  coordinator_->Start();
  absl::Time deadline = absl::Now() + kPatience;
  while (!mailbox_.cancelled() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(mailbox_.Take(), TrainerOrder::kCancel);
  stream_->Report(StepReport(2));
  EXPECT_EQ(stream_->Finish(Success(2)).code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(HasReportFile());
}

TEST_F(Report, OtherErrorsAreRetried) {
  OpenAssigned();
  coordinator_->Stop();
  coordinator_->Refuse({grpc::StatusCode::INTERNAL, "broken"});
  coordinator_->Start();
  EXPECT_TRUE(coordinator_->Becomes(
      [&] { return coordinator_->registrations_.size() >= 4; }));
  coordinator_->Refuse(grpc::Status::OK);
  EXPECT_TRUE(stream_->Finish(Success(0)).ok());
  EXPECT_FALSE(mailbox_.cancelled());
}

TEST_F(Report, LeavesAFileWhereNoCoordinatorIs) {
  FakeClock clock;
  options_.clock = &clock;
  options_.patience = absl::Seconds(10);
  OpenAssigned();
  stream_->Report(StepReport(1));
  ASSERT_TRUE(coordinator_->BecomesStored(1));
  coordinator_->Stop();
  stream_->Report(StepReport(2));
  std::atomic<bool> done = false;
  std::thread finisher([&] {
    EXPECT_TRUE(stream_->Finish(Success(2)).ok());
    EXPECT_GE(clock.Monotonic(), absl::Seconds(10));
    done = true;
  });
  while (!done) {
    EXPECT_TRUE(clock.Monotonic() >= absl::Seconds(10) || !HasReportFile());
    clock.Advance(absl::Seconds(1));
    absl::SleepFor(absl::Milliseconds(1));
  }
  finisher.join();
  auto messages = ReadReportFile(options_.report_file);
  ASSERT_TRUE(messages.ok()) << messages.status();
  std::vector<int64_t> sequences;
  for (const v1::WorkerMessage& message : *messages) {
    EXPECT_EQ(message.attempt(), 2);
    EXPECT_EQ(message.rank(), 1);
    sequences.push_back(message.sequence());
  }
  // 1 was stored; whether the rank has heard so is a matter of luck.
  if (sequences.size() == 3) sequences.erase(sequences.begin());
  EXPECT_THAT(sequences, ElementsAre(2, 3));
  EXPECT_EQ(messages->back().finished().last_step(), 2);
}

TEST_F(Report, StopShortensTheWaitForACoordinator) {
  options_.stopped_patience = absl::Milliseconds(5);
  OpenAssigned();
  coordinator_->Stop();
  stream_->Stop();
  EXPECT_TRUE(stream_->Finish(Success(0)).ok());
  EXPECT_TRUE(HasReportFile());
}

TEST_F(Report, CoordinatorThatNeverAcknowledgesIsGivenUp) {
  options_.acknowledge_patience = absl::Milliseconds(20);
  coordinator_->SetAcknowledging(false);
  OpenAssigned();
  EXPECT_TRUE(stream_->Finish(Success(0)).ok());
  EXPECT_TRUE(HasReportFile());
}

TEST_F(Report, StopEndsTheWaitForAnAssignment) {
  Open();
  std::thread stopper([&] { stream_->Stop(); });
  EXPECT_EQ(stream_->AwaitAssignment().status().code(),
            absl::StatusCode::kCancelled);
  stopper.join();
}

TEST_F(Report, FullQueueHoldsTrainingUntilThereIsRoom) {
  options_.most_unacknowledged = 3;
  coordinator_->SetAcknowledging(false);
  OpenAssigned();
  std::atomic<int> reported = 0;
  std::thread trainer([&] {
    for (int64_t step = 1; step <= 5; ++step) {
      stream_->Report(StepReport(step));
      ++reported;
    }
  });
  ASSERT_TRUE(coordinator_->BecomesStored(3));
  EXPECT_EQ(stream_->unacknowledged(), 3);
  EXPECT_LE(reported, 3);
  coordinator_->Acknowledge();
  trainer.join();
  ASSERT_TRUE(coordinator_->BecomesStored(5));
  EXPECT_EQ(stream_->unacknowledged(), 2);
}

TEST_F(Report, StopOpensAFullQueue) {
  options_.most_unacknowledged = 1;
  options_.stopped_patience = absl::Milliseconds(1);
  OpenAssigned();
  coordinator_->Stop();
  stream_->Report(StepReport(1));
  std::thread stopper([&] { stream_->Stop(); });
  stream_->Report(StepReport(2));
  stopper.join();
  EXPECT_TRUE(stream_->Finish(Success(2)).ok());
  EXPECT_EQ(ReadReportFile(options_.report_file)->size(), 3u);
}

}  // namespace
}  // namespace ebb
