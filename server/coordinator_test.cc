// Requests, reports and observations against a launcher and a clock that the
// test moves.
#include "server/coordinator.h"

#include <sqlite3.h>
#include <cmath>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/report_file.h"
#include "proto/violations.h"
#include "server/job_state.h"
#include "server/testing/fakes.h"

namespace ebb {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::CreateJobRequest CreateRequest(const v1::JobSpec& spec,
                                   const std::string& request_id) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(request_id);
  return request;
}

v1::CancelJobRequest CancelRequest(const std::string& id, bool now = false) {
  v1::CancelJobRequest request;
  request.set_id(id);
  request.set_now(now);
  return request;
}

// Ends it well.
void Finish(TestCoordinator& test, const std::string& id, int64_t sequence,
            const std::shared_ptr<FakeConnection>& connection) {
  EXPECT_TRUE(
      test->Receive(FinishedMessage(id, 1, sequence, 0), connection.get())
          .ok());
  test->Disconnect(RegisterMessage(id, 1), connection.get());
  test.launcher.End(id, 1, {0, 0, false});
  test->Tick();
}

TEST(Coordinator, AJobRunsToItsEnd) {
  TestCoordinator test;
  const std::string id = test.Create();
  v1::Job job = test.Get(id);
  EXPECT_EQ(job.state(), v1::STATE_QUEUED);
  EXPECT_EQ(job.attempt(), 0);
  EXPECT_EQ(job.spec().optimizer().beta1(), 0.9) << "the effective spec";
  EXPECT_EQ(job.spec().precision(), v1::PRECISION_BF16);
  EXPECT_TRUE(std::filesystem::is_directory(job.directory()));
  test->Tick();
  EXPECT_EQ(test.Get(id).state(), v1::STATE_STARTING);
  EXPECT_THAT(test.launcher.launched, ElementsAre(id + "/1"));

  auto connection = std::make_shared<FakeConnection>();
  ASSERT_TRUE(test->Connect(RegisterMessage(id, 1), connection).ok());
  ASSERT_EQ(connection->sent().size(), 1u);
  EXPECT_EQ(connection->sent()[0].assignment().directory(), job.directory());
  ASSERT_TRUE(test->Receive(StartedMessage(id, 1), connection.get()).ok());
  test->Tick();
  EXPECT_EQ(test.Get(id).state(), v1::STATE_RUNNING);

  ASSERT_TRUE(test->Receive(StepMessage(id, 1, 1, 1), connection.get()).ok());
  ASSERT_TRUE(test->Receive(StepMessage(id, 1, 2, 2), connection.get()).ok());
  EXPECT_EQ(connection->sent().size(), 1u) << "acknowledged before stored";
  test->Tick();
  ASSERT_EQ(connection->sent().size(), 2u);
  EXPECT_EQ(connection->sent()[1].acknowledge().sequence(), 2);
  EXPECT_EQ(test.Get(id).last_step(), 2);
  EXPECT_EQ(test.Get(id).last_loss(), 2.5);

  Finish(test, id, 3, connection);
  job = test.Get(id);
  EXPECT_EQ(job.state(), v1::STATE_SUCCEEDED);
  EXPECT_EQ(job.reason(), v1::REASON_COMPLETED);
  EXPECT_EQ(job.weights_hash(), 77u);
  EXPECT_TRUE(job.has_start_time() && job.has_end_time());
  EXPECT_THAT(test.launcher.forgotten, ElementsAre(id + "/1"));

  const auto events = test->EventsAfter(id, 0, 100);
  ASSERT_TRUE(events.ok());
  EXPECT_TRUE(events->ended);
  std::vector<v1::State> states;
  int64_t sequence = 0;
  for (const v1::JobEvent& event : events->events) {
    EXPECT_EQ(event.sequence(), ++sequence);
    states.push_back(event.job().state());
    EXPECT_EQ(event.job().spec().steps(), 100);
  }
  EXPECT_THAT(states, ElementsAre(v1::STATE_QUEUED, v1::STATE_STARTING,
                                  v1::STATE_RUNNING, v1::STATE_SUCCEEDED));
  EXPECT_EQ(test->EventsAfter(id, 3, 100)->events.size(), 1u);
}

TEST(Coordinator, AllMistakesOfASpecAtOnce) {
  TestCoordinator test;
  v1::JobSpec spec = TestCoordinator::Spec();
  spec.set_steps(-5);
  spec.mutable_optimizer()->set_lr(-1);
  spec.mutable_model()->set_dropout(1.5);
  const auto job = test->CreateJob(CreateRequest(spec, ""));
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  std::set<std::string> fields;
  for (const v1::Violation& violation : GetViolations(job.status())) {
    fields.insert(violation.field());
  }
  EXPECT_EQ(fields.count("steps"), 1u);
  EXPECT_EQ(fields.count("optimizer.lr"), 1u);
  EXPECT_EQ(fields.count("model.dropout"), 1u);
  EXPECT_TRUE(std::filesystem::is_empty(test.directory + "/jobs"));
}

TEST(Coordinator, FilesAreCheckedAtSubmitOnly) {
  TestCoordinator test;
  test.files.violations.emplace_back().set_field("data.train");
  test.files.code = absl::StatusCode::kNotFound;
  EXPECT_TRUE(absl::IsNotFound(
      test->CreateJob(CreateRequest(TestCoordinator::Spec(), "")).status()));
  v1::PlanJobRequest plan;
  *plan.mutable_spec() = TestCoordinator::Spec();
  plan.set_dump(true);
  const auto planned = test->PlanJob(plan, [] { return false; });
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->dump(), "the program");
  plan.set_rank(1);
  EXPECT_EQ(test->PlanJob(plan, [] { return false; }).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// The worker measures, the times are kept, and the plan is made with them.
TEST(Coordinator, PlansWithMeasuredTimesOnRequest) {
  TestCoordinator test;
  v1::PlanJobRequest plan;
  *plan.mutable_spec() = TestCoordinator::Spec();
  ASSERT_TRUE(test->PlanJob(plan, [] { return false; }).ok());
  EXPECT_TRUE(test.op_times.empty());
  test.measured = std::map<std::string, double>{{"add forward", 0.5}};
  plan.set_profile(true);
  const auto planned = test->PlanJob(plan, [] { return false; });
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(test.op_times, *test.measured);
  test.measured = absl::ResourceExhaustedError("too large");
  EXPECT_TRUE(absl::IsResourceExhausted(
      test->PlanJob(plan, [] { return false; }).status()));
}

TEST(Coordinator, ViewsOfAPlanAreAskedForInWordsItKnows) {
  TestCoordinator test;
  v1::PlanJobRequest request;
  *request.mutable_spec() = TestCoordinator::Spec();
  EXPECT_FALSE(
      test->PlanJob(request, [] { return false; })->has_paper_accounting());
  request.set_accounting("paper");
  const auto accounted = test->PlanJob(request, [] { return false; });
  ASSERT_TRUE(accounted.ok()) << accounted.status();
  EXPECT_EQ(accounted->paper_accounting().policies_size(), 3);
  request.set_accounting("folklore");
  EXPECT_EQ(test->PlanJob(request, [] { return false; }).status().code(),
            absl::StatusCode::kInvalidArgument);
  request.clear_accounting();
  for (int points : {-1, 4097}) {
    request.set_timeline_points(points);
    EXPECT_EQ(test->PlanJob(request, [] { return false; }).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(Coordinator, FilesAreToldWithTheMistakesOfFields) {
  TestCoordinator test;
  test.files.violations.emplace_back().set_field("data.train");
  test.files.code = absl::StatusCode::kNotFound;
  v1::JobSpec spec = TestCoordinator::Spec();
  spec.set_steps(-5);
  const auto job = test->CreateJob(CreateRequest(spec, ""));
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  std::vector<std::string> fields;
  for (const v1::Violation& violation : GetViolations(job.status())) {
    fields.push_back(violation.field());
  }
  EXPECT_THAT(fields, ElementsAre("data.train", "steps"));
  ASSERT_EQ(test.files_wrong.size(), 1u);
  EXPECT_EQ(test.files_wrong[0].field(), "steps");

  // A check says the same and makes nothing, even of a good spec.
  v1::CheckJobRequest check;
  *check.mutable_spec() = spec;
  EXPECT_EQ(test->CheckJob(check), job.status());
  test.files = {};
  *check.mutable_spec() = TestCoordinator::Spec();
  EXPECT_TRUE(test->CheckJob(check).ok());
  EXPECT_TRUE(std::filesystem::is_empty(test.directory + "/jobs"));
}

TEST(Coordinator, TheWeightsThatWereFoundAreTheJobs) {
  TestCoordinator test;
  test.files.init_from = "/jobs/a/checkpoints/step-7";
  v1::JobSpec spec = TestCoordinator::Spec();
  spec.mutable_checkpoint()->set_init_from("/jobs/a");
  const std::string id = test.Create(spec);
  EXPECT_EQ(test.Get(id).spec().checkpoint().init_from(),
            "/jobs/a/checkpoints/step-7");
}

TEST(Coordinator, TrainingThatGoesWrongIsKeptAndToldOnce) {
  TestCoordinator test;
  const std::string id = test.Create();
  const auto connection = BringToRun(test, id);
  for (int64_t step = 1; step <= 3; ++step) {
    v1::WorkerMessage message = StepMessage(id, 1, step, step);
    if (step == 2) message.mutable_report()->mutable_step()->set_loss(NAN);
    ASSERT_TRUE(test->Receive(message, connection.get()).ok());
  }
  test->Tick();
  test.Restart();
  const v1::Job job = test.Get(id);
  EXPECT_EQ(job.warning().kind(), v1::TrainingWarning::KIND_NOT_FINITE);
  EXPECT_EQ(job.warning().step(), 2);
  EXPECT_EQ(job.last_step(), 3);
  int num_warnings = 0;
  const auto events = test->EventsAfter(id, 0, 100);
  ASSERT_TRUE(events.ok());
  for (const v1::JobEvent& event : events->events) {
    if (!event.has_warning()) continue;
    ++num_warnings;
    EXPECT_EQ(event.warning().step(), 2);
  }
  EXPECT_EQ(num_warnings, 1);
}

// What encoding lost stays lost, whatever steps do later.
TEST(Coordinator, AJobOfALossyStepIsLossyForGood) {
  TestCoordinator test;
  const std::string id = test.Create();
  const auto connection = BringToRun(test, id);
  for (const int step : {1, 2, 3}) {
    v1::WorkerMessage message = StepMessage(id, 1, step, step);
    if (step == 2) {
      v1::Step& report = *message.mutable_report()->mutable_step();
      if (report.ranks().empty()) report.add_ranks();
      report.mutable_ranks(0)->add_encode_errors()->set_value("gelu");
    }
    ASSERT_TRUE(test->Receive(message, connection.get()).ok());
    test->Tick();
    EXPECT_EQ(test.Get(id).lossy(), step >= 2);
  }
  test.Restart();
  EXPECT_TRUE(test.Get(id).lossy());
}

TEST(Coordinator, AJobThatDoesNotFitIsRefusedWithThePlansShortfall) {
  TestCoordinator test;
  test.plan.fits = false;
  test.plan.shortfall = "need 3 GiB: memory.policy full fits";
  const auto job = test->CreateJob(CreateRequest(TestCoordinator::Spec(), ""));
  EXPECT_EQ(job.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(job.status().message()),
              HasSubstr("does not fit: need 3 GiB: memory.policy full fits"));
}

// Half of what is there may wait in host memory by itself; both together must
// be there.
TEST(Coordinator, HostMemoryOfACpuIsTheDevices) {
  TestCoordinator test;
  test.inventory.memory = 1000;
  test.plan.ranks[0].peak_bytes = 600;
  test.plan.ranks[0].host_bytes = 401;
  v1::JobSpec spec = TestCoordinator::Spec();
  spec.mutable_memory()->clear_host_budget();
  const auto refused = test->CreateJob(CreateRequest(spec, ""));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("need 600 bytes and 401 more in host memory, have "
                        "1000: set memory.budget lower"));
  spec.mutable_memory()->set_host_budget(500);
  EXPECT_TRUE(test->CreateJob(CreateRequest(spec, "")).ok());
  test.plan.ranks[0].host_bytes = 400;
  spec.mutable_memory()->clear_host_budget();
  EXPECT_TRUE(test->CreateJob(CreateRequest(spec, "")).ok());
}

TEST(Coordinator, OneRequestIdIsOneJobHoweverManyAsk) {
  TestCoordinator test;
  std::vector<std::string> ids(10);
  std::vector<std::thread> threads;
  for (int i = 0; i < 10; ++i) {
    threads.emplace_back([&, i] {
      for (int again = 0; again < 3; ++again) {
        const auto job =
            test->CreateJob(CreateRequest(TestCoordinator::Spec(), "same"));
        ASSERT_TRUE(job.ok()) << job.status();
        ids[i] = job->id();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(ids.begin(), ids.end()).size(), 1u);
  EXPECT_EQ(test.store->ListJobs({}, 0, 100, 1 << 20)->size(), 1u);
  test.Restart();
  EXPECT_EQ(
      test->CreateJob(CreateRequest(TestCoordinator::Spec(), "same"))->id(),
      ids[0]);
  const auto other =
      test->CreateJob(CreateRequest(TestCoordinator::Spec("other"), "same"));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(test.Create(), test.Create()) << "without an id";
  EXPECT_EQ(test->CreateJob(CreateRequest(TestCoordinator::Spec(),
                                          std::string(129, 'x')))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Coordinator, JobsRunByPriorityThenAgeAsCoresAllow) {
  TestCoordinator test;
  v1::JobSpec spec = TestCoordinator::Spec();
  spec.mutable_resources()->set_threads(2);
  const std::string low = test.Create(spec);
  const std::string later = test.Create(spec);
  spec.set_priority(5);
  const std::string high = test.Create(spec);
  test->Tick();
  EXPECT_THAT(test.launcher.launched, ElementsAre(high + "/1"));
  test->Tick();
  EXPECT_EQ(test.launcher.launched.size(), 1u);
  auto connection = BringToRun(test, high);
  Finish(test, high, 1, connection);
  EXPECT_THAT(test.launcher.launched, ElementsAre(high + "/1", low + "/1"));
}

TEST(Coordinator, SmallJobsShareTheMachineWithinItsMemory) {
  TestCoordinator test;
  v1::JobSpec spec = TestCoordinator::Spec();
  spec.mutable_resources()->set_threads(1);
  test.inventory.num_cores = 4;
  test.plan.ranks[0].peak_bytes = test.inventory.memory / 3 + 1;
  for (int i = 0; i < 3; ++i) test.Create(spec);
  test->Tick();
  EXPECT_EQ(test.launcher.launched.size(), 2u) << "memory for two";
}

TEST(Coordinator, CancelOfAQueuedJobIsAtOnce) {
  TestCoordinator test;
  const std::string id = test.Create();
  EXPECT_EQ(test->CancelJob(CancelRequest(id))->state(), v1::STATE_CANCELLED);
  test->Tick();
  EXPECT_TRUE(test.launcher.launched.empty());
  EXPECT_EQ(test->CancelJob(CancelRequest(id)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(test->CancelJob(CancelRequest("nothing1")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(Coordinator, CancelAsksTheWorkerAndThenUsesForce) {
  TestCoordinator test;
  const std::string id = test.Create();
  auto connection = BringToRun(test, id);
  EXPECT_EQ(test->CancelJob(CancelRequest(id))->state(), v1::STATE_CANCELLING);
  test->Tick();
  test->Tick();
  ASSERT_EQ(connection->sent().size(), 2u) << "assignment and one order";
  EXPECT_EQ(connection->sent()[1].order().kind(), v1::Order::KIND_CANCEL);
  EXPECT_TRUE(test.launcher.signals.empty());
  test.clock.Advance(kCancelGrace);
  test->Tick();
  test->Tick();
  EXPECT_THAT(test.launcher.signals, ElementsAre(StopSignal::kTerminate));
  test.clock.Advance(kTerminateGrace);
  test->Tick();
  EXPECT_THAT(test.launcher.signals,
              ElementsAre(StopSignal::kTerminate, StopSignal::kKill));
  test->Disconnect(RegisterMessage(id, 1), connection.get());
  test.launcher.End(id, 1, {-1, 9, true});
  test->Tick();
  EXPECT_EQ(test.Get(id).state(), v1::STATE_CANCELLED);
  EXPECT_EQ(test.Get(id).reason(), v1::REASON_USER_REQUEST);
}

TEST(Coordinator, CancelNowKills) {
  TestCoordinator test;
  const std::string id = test.Create();
  BringToRun(test, id);
  ASSERT_TRUE(test->CancelJob(CancelRequest(id)).ok());
  ASSERT_TRUE(test->CancelJob(CancelRequest(id, true)).ok()) << "hurry up";
  test->Tick();
  EXPECT_THAT(test.launcher.signals, ElementsAre(StopSignal::kKill));
}

TEST(Coordinator, AStoreThatTakesNoReportsDoesNotKeepAJobAlive) {
  TestCoordinator test;
  const std::string id = test.Create();
  auto connection = BringToRun(test, id);
  sqlite3* second = nullptr;
  ASSERT_EQ(sqlite3_open((test.directory + "/ebbd.db").c_str(), &second),
            SQLITE_OK);
  const auto run = [&](const char* sql) {
    EXPECT_EQ(sqlite3_exec(second, sql, nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(second);
  };
  run("CREATE TRIGGER full BEFORE INSERT ON steps "
      "BEGIN SELECT RAISE(ABORT, 'disk is full'); END");
  ASSERT_TRUE(test->Receive(StepMessage(id, 1, 1, 1), connection.get()).ok());
  ASSERT_TRUE(test->CancelJob(CancelRequest(id, true)).ok());
  test->Tick();
  EXPECT_THAT(test.launcher.signals, ElementsAre(StopSignal::kKill));
  test->Disconnect(RegisterMessage(id, 1), connection.get());
  test.launcher.End(id, 1, {-1, 9, true});
  test->Tick();
  EXPECT_EQ(test.Get(id).state(), v1::STATE_CANCELLING)
      << "no end while the report is not on disk";
  run("DROP TRIGGER full");
  sqlite3_close(second);
  test->Tick();
  EXPECT_EQ(test.Get(id).state(), v1::STATE_CANCELLED);
  EXPECT_EQ(test->StepsAfter(id, 0, 10)->steps.size(), 1u);
}

TEST(Coordinator, ADeadRankIsNamedWithItsLastLines) {
  TestCoordinator test;
  const std::string id = test.Create();
  auto connection = BringToRun(test, id);
  std::ofstream(test.Get(id).directory() + "/attempt-1/rank-0.log")
      << "line one\nlast \xFF words\n";
  test->Disconnect(RegisterMessage(id, 1), connection.get());
  test.launcher.End(id, 1, {-1, 9, false});
  test->Tick();
  const v1::Job job = test.Get(id);
  EXPECT_EQ(job.state(), v1::STATE_FAILED);
  EXPECT_EQ(job.reason(), v1::REASON_WORKER_EXITED);
  EXPECT_THAT(job.message(),
              HasSubstr("rank 0: signal 9 (possible out-of-memory)"));
  EXPECT_THAT(job.message(), HasSubstr("last ? words"));
}

TEST(Coordinator, AWorkersOwnWordsAreTheMessage) {
  TestCoordinator test;
  const std::string id = test.Create();
  auto connection = BringToRun(test, id);
  ASSERT_TRUE(test->Receive(FinishedMessage(id, 1, 1, 15, "file changed"),
                            connection.get())
                  .ok());
  test->Disconnect(RegisterMessage(id, 1), connection.get());
  test.launcher.End(id, 1, {1, 0, false});
  test->Tick();
  EXPECT_EQ(test.Get(id).reason(), v1::REASON_WORKER_ERROR);
  EXPECT_EQ(test.Get(id).message(), "rank 0: file changed");
}

TEST(Coordinator, ALaunchThatFailsEndsTheJob) {
  TestCoordinator test;
  test.launcher.launch_status = absl::InternalError("cannot start: ENOENT");
  const std::string id = test.Create();
  test->Tick();
  test->Tick();
  EXPECT_EQ(test.Get(id).reason(), v1::REASON_LAUNCH_FAILED);
  EXPECT_THAT(test.Get(id).message(), HasSubstr("ENOENT"));
}

TEST(Coordinator, NoFirstStepInTimeEndsTheJobWhateverTheWallClockSays) {
  TestCoordinator test;
  v1::JobSpec spec = TestCoordinator::Spec();
  spec.mutable_resources()->mutable_timeout()->set_seconds(30);
  const std::string id = test.Create(spec);
  test->Tick();
  test.clock.JumpWallTime(absl::Hours(1000));
  test->Tick();
  EXPECT_TRUE(test.launcher.signals.empty());
  test.clock.JumpWallTime(-absl::Hours(500000));
  test.clock.Advance(absl::Seconds(30));
  test->Tick();
  EXPECT_THAT(test.launcher.signals, ElementsAre(StopSignal::kKill));
  test.launcher.End(id, 1, {-1, 9, true});
  test->Tick();
  EXPECT_EQ(test.Get(id).reason(), v1::REASON_START_TIMEOUT);
}

TEST(Coordinator, ReportsAreStoredOnceHoweverOftenTheyCome) {
  TestCoordinator test;
  const std::string id = test.Create();
  auto connection = BringToRun(test, id);
  for (int again = 0; again < 3; ++again) {
    ASSERT_TRUE(test->Receive(StepMessage(id, 1, 1, 1), connection.get()).ok());
    test->Tick();
  }
  EXPECT_EQ(test->StepsAfter(id, 0, 10)->steps.size(), 1u);
  EXPECT_THAT(test.Page(), HasSubstr("ebb_steps_total 1"));
  // Each is acknowledged, so that the worker can forget it.
  EXPECT_EQ(connection->sent().back().acknowledge().sequence(), 1);
  EXPECT_EQ(test->Receive(StepMessage(id, 1, 3, 3), connection.get()).code(),
            absl::StatusCode::kInvalidArgument)
      << "a gap";
}

TEST(Coordinator, ARankThatComesBackGoesOnWhereTheStoreIs) {
  TestCoordinator test;
  const std::string id = test.Create();
  auto first = BringToRun(test, id);
  ASSERT_TRUE(test->Receive(StepMessage(id, 1, 1, 1), first.get()).ok());
  test->Tick();
  auto second = std::make_shared<FakeConnection>();
  ASSERT_TRUE(test->Connect(RegisterMessage(id, 1, true), second).ok());
  EXPECT_TRUE(first->closed().has_value());
  ASSERT_EQ(second->sent().size(), 1u);
  EXPECT_EQ(second->sent()[0].acknowledge().sequence(), 1);
  EXPECT_EQ(test->Receive(StepMessage(id, 1, 2, 2), first.get()).code(),
            absl::StatusCode::kFailedPrecondition)
      << "the old stream has no say";
  EXPECT_TRUE(test->Receive(StepMessage(id, 1, 2, 2), second.get()).ok());
  // The old stream's end changes nothing.
  test->Disconnect(RegisterMessage(id, 1), first.get());
  EXPECT_TRUE(test->Receive(StepMessage(id, 1, 3, 3), second.get()).ok());
}

TEST(Coordinator, WorkersOfAnotherAttemptOrBackendAreSentAway) {
  TestCoordinator test;
  const std::string id = test.Create();
  auto connection = std::make_shared<FakeConnection>();
  EXPECT_EQ(test->Connect(RegisterMessage(id, 1), connection).code(),
            absl::StatusCode::kFailedPrecondition)
      << "not launched yet";
  test->Tick();
  EXPECT_EQ(test->Connect(RegisterMessage(id, 2), connection).code(),
            absl::StatusCode::kFailedPrecondition);
  v1::WorkerMessage message = RegisterMessage(id, 1);
  message.set_rank(7);
  EXPECT_FALSE(test->Connect(message, connection).ok());
  message.set_rank(-1);
  EXPECT_FALSE(test->Connect(message, connection).ok());
  message = RegisterMessage(id, 1);
  message.mutable_register_()->mutable_backend()->set_threads(3);
  const absl::Status refused = test->Connect(message, connection);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("threads"));
  EXPECT_EQ(test->Connect(RegisterMessage("nothing1", 1), connection).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(test->Connect(StartedMessage(id, 1), connection).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(connection->sent().empty());
}

TEST(Coordinator, HostileReportsAreRefused) {
  TestCoordinator test;
  const std::string id = test.Create();
  auto connection = BringToRun(test, id);
  const auto code = [&](const v1::WorkerMessage& message) {
    return test->Receive(message, connection.get()).code();
  };
  EXPECT_EQ(code(StepMessage(id, 1, 1, -1)),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(StepMessage(id, 1, 1, INT64_MAX)),
            absl::StatusCode::kInvalidArgument);
  v1::WorkerMessage none = StepMessage(id, 1, 1, 1);
  none.mutable_report()->mutable_step()->clear_ranks();
  EXPECT_EQ(code(none), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(StepMessage(id, 1, INT64_MAX, 1)),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(StepMessage(id, 1, INT64_MIN, 1)), absl::StatusCode::kOk)
      << "taken for one that came before";
  v1::WorkerMessage empty;
  empty.set_job_id(id);
  empty.set_attempt(1);
  EXPECT_EQ(code(empty), absl::StatusCode::kInvalidArgument);
  empty.mutable_report();
  empty.set_sequence(1);
  EXPECT_EQ(code(empty), absl::StatusCode::kInvalidArgument);
  v1::WorkerMessage other = StepMessage(id, 1, 1, 1);
  other.set_rank(3);
  EXPECT_EQ(code(other), absl::StatusCode::kFailedPrecondition);
  test->Tick();
  EXPECT_EQ(test.Get(id).last_step(), 0);
  EXPECT_EQ(code(StepMessage(id, 1, 1, 1)), absl::StatusCode::kOk);
}

TEST(Coordinator, EvaluationsAndCheckpointsAreEvents) {
  TestCoordinator test;
  const std::string id = test.Create();
  auto connection = BringToRun(test, id);
  v1::WorkerMessage eval;
  eval.set_job_id(id);
  eval.set_attempt(1);
  eval.set_sequence(1);
  eval.mutable_report()->mutable_eval()->set_step(10);
  eval.mutable_report()->mutable_eval()->set_loss(2);
  eval.mutable_report()->mutable_eval()->set_tokens(4096);
  ASSERT_TRUE(test->Receive(eval, connection.get()).ok());
  v1::WorkerMessage saved = eval;
  saved.set_sequence(2);
  saved.mutable_report()->mutable_checkpoint()->set_step(10);
  saved.mutable_report()->mutable_checkpoint()->set_directory("/d/step-10");
  ASSERT_TRUE(test->Receive(saved, connection.get()).ok());
  v1::WorkerMessage failed = saved;
  failed.set_sequence(3);
  failed.mutable_report()->mutable_checkpoint()->set_step(20);
  failed.mutable_report()->mutable_checkpoint()->set_error("disk full");
  ASSERT_TRUE(test->Receive(failed, connection.get()).ok());
  test->Tick();
  const v1::Job job = test.Get(id);
  EXPECT_EQ(job.last_eval().loss(), 2);
  EXPECT_EQ(job.checkpoint_step(), 10) << "the failed one does not count";
  const auto events = test->EventsAfter(id, 3, 10);
  ASSERT_EQ(events->events.size(), 3u);
  EXPECT_TRUE(events->events[0].has_eval());
  EXPECT_EQ(events->events[2].checkpoint().error(), "disk full");
  EXPECT_FALSE(events->ended);
  EXPECT_THAT(test.Page(), HasSubstr("ebb_tokens_total 0"));
}

TEST(Coordinator, ARestartFindsEverythingAgain) {
  TestCoordinator test;
  test.inventory.num_cores = 4;  // two jobs of the default 2 threads
  v1::JobSpec spec = TestCoordinator::Spec();
  spec.mutable_resources()->set_threads(2);
  const std::string finished = test.Create(spec);
  auto connection = BringToRun(test, finished);
  Finish(test, finished, 1, connection);
  const std::string running = test.Create(spec);
  connection = BringToRun(test, running);
  ASSERT_TRUE(
      test->Receive(StepMessage(running, 1, 1, 1), connection.get()).ok());
  test->Tick();
  const std::string cancelling = test.Create(spec);
  BringToRun(test, cancelling);
  ASSERT_TRUE(test->CancelJob(CancelRequest(cancelling)).ok());
  const std::string queued = test.Create(spec);

  test.Restart();
  EXPECT_EQ(test.Get(finished).state(), v1::STATE_SUCCEEDED);
  EXPECT_EQ(test.Get(running).state(), v1::STATE_RUNNING);
  EXPECT_EQ(test.Get(cancelling).state(), v1::STATE_CANCELLING);
  EXPECT_EQ(test.Get(queued).state(), v1::STATE_QUEUED);
  test->Tick();
  EXPECT_EQ(test.launcher.launched.size(), 3u) << "nothing runs twice";
  EXPECT_THAT(test.Page(), HasSubstr("ebb_jobs{state=\"running\"} 1"));
  EXPECT_THAT(test.Page(),
              HasSubstr(absl::StrCat("ebb_train_tokens_total{job_id=\"",
                                     running, "\"} 64")))
      << "the position of the job survives";
  EXPECT_THAT(test.Page(), HasSubstr("ebb_tokens_total 0"));

  // The worker dials again and sends what was not acknowledged.
  connection = std::make_shared<FakeConnection>();
  ASSERT_TRUE(
      test->Connect(RegisterMessage(running, 1, true), connection).ok());
  EXPECT_EQ(connection->sent()[0].acknowledge().sequence(), 1);
  ASSERT_TRUE(
      test->Receive(StepMessage(running, 1, 1, 1), connection.get()).ok());
  ASSERT_TRUE(
      test->Receive(StepMessage(running, 1, 2, 2), connection.get()).ok());
  test->Tick();
  EXPECT_EQ(test->StepsAfter(running, 0, 10)->steps.size(), 2u);
  // Cancelling goes on, with a grace of its own.
  test.clock.Advance(kCancelGrace + kTerminateGrace);
  test->Tick();
  EXPECT_FALSE(test.launcher.signals.empty());
  test.launcher.End(cancelling, 1, {-1, 9, true});
  test->Tick();
  EXPECT_EQ(test.Get(cancelling).state(), v1::STATE_CANCELLED);
  test->Tick();
  EXPECT_EQ(test.launcher.launched.back(), queued + "/1");
}

TEST(Coordinator, ReportsLeftOnDiskAreReadAfterARestart) {
  TestCoordinator test;
  const std::string id = test.Create();
  auto connection = BringToRun(test, id);
  ASSERT_TRUE(test->Receive(StepMessage(id, 1, 1, 1), connection.get()).ok());
  test->Tick();
  const std::string attempt = test.Get(id).directory() + "/attempt-1";
  test.Restart();
  ASSERT_TRUE(
      WriteReportFile(ReportFilePath(attempt, 0),
                      std::vector<std::string>{
                          StepMessage(id, 1, 1, 1).SerializeAsString(),
                          StepMessage(id, 1, 2, 2).SerializeAsString(),
                          FinishedMessage(id, 1, 3, 0).SerializeAsString()})
          .ok());
  test.launcher.End(id, 1, {0, 0, false});
  test->Tick();
  EXPECT_EQ(test.Get(id).state(), v1::STATE_SUCCEEDED);
  EXPECT_EQ(test.Get(id).last_step(), 2);
  EXPECT_EQ(test->StepsAfter(id, 0, 10)->steps.size(), 2u);
}

TEST(Coordinator, AnAttemptThatWasStoredButNeverLaunchedIsLaunchedOnce) {
  TestCoordinator test;
  const std::string id = test.Create();
  // As after a crash between the transaction and the launch.
  test->Tick();
  test.launcher.attempts.clear();
  test.launcher.launched.clear();
  test.Restart();
  EXPECT_THAT(test.launcher.launched, ElementsAre(id + "/2"));
  EXPECT_EQ(test.Get(id).state(), v1::STATE_STARTING);
  EXPECT_EQ(test.Get(id).attempt(), 2);
  auto connection = std::make_shared<FakeConnection>();
  EXPECT_EQ(test->Connect(RegisterMessage(id, 1), connection).code(),
            absl::StatusCode::kFailedPrecondition)
      << "the first attempt is fenced off";
  EXPECT_TRUE(test->Connect(RegisterMessage(id, 2), connection).ok());
}

TEST(Coordinator, DeleteTakesEverythingOfAnEndedJob) {
  TestCoordinator test;
  const std::string id = test.Create();
  const std::string directory = test.Get(id).directory();
  v1::DeleteJobRequest request;
  request.set_id(id);
  EXPECT_EQ(test->DeleteJob(request).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(test->CancelJob(CancelRequest(id)).ok());
  ASSERT_TRUE(test->DeleteJob(request).ok());
  EXPECT_FALSE(std::filesystem::exists(directory));
  EXPECT_TRUE(std::filesystem::is_empty(test.directory + "/jobs"));
  EXPECT_EQ(test->DeleteJob(request).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(test.Page(), HasSubstr("ebb_jobs{state=\"cancelled\"} 0"));
}

TEST(Coordinator, ExportsWhatAJobHasSaved) {
  TestCoordinator test;
  const std::string id = test.Create();
  const auto never = [] { return false; };
  v1::ExportJobRequest request;
  request.set_id(id);
  request.set_directory("/somewhere/hf");
  test.exported->set_step(6);
  const auto response = test->ExportJob(request, never);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->step(), 6);
  EXPECT_EQ(test.exported_checkpoints,
            test.Get(id).directory() + "/checkpoints");
  test.exported = absl::FailedPreconditionError("no checkpoint");
  const absl::Status failed = test->ExportJob(request, never).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(failed.message()),
              AllOf(HasSubstr(id), HasSubstr("--set checkpoint.every=N")));
}

TEST(Coordinator, RefusesExportsThatAreNone) {
  TestCoordinator test;
  const std::string id = test.Create();
  const auto code = [&](const std::string& job, const std::string& directory,
                        int64_t step, int64_t shard_bytes) {
    v1::ExportJobRequest request;
    request.set_id(job);
    request.set_directory(directory);
    request.set_step(step);
    request.set_shard_bytes(shard_bytes);
    return test->ExportJob(request, [] { return false; }).status().code();
  };
  EXPECT_EQ(code(id, "/d", 0, 0), absl::StatusCode::kOk);
  EXPECT_EQ(code("nosuchjb", "/d", 0, 0), absl::StatusCode::kNotFound);
  EXPECT_EQ(code("../x", "/d", 0, 0), absl::StatusCode::kNotFound);
  const auto bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code(id, "relative", 0, 0), bad);
  EXPECT_EQ(code(id, "", 0, 0), bad);
  EXPECT_EQ(code(id, "/" + std::string(5000, 'x'), 0, 0), bad);
  EXPECT_EQ(code(id, std::string("/d\0e", 4), 0, 0), bad);
  EXPECT_EQ(code(id, "/d", -1, 0), bad);
  EXPECT_EQ(code(id, "/d", 0, -1), bad);
}

TEST(Coordinator, SamplesFromWhatAJobHasSaved) {
  TestCoordinator test;
  const std::string id = test.Create();
  std::vector<std::string> texts;
  const SampleListener listener = {.on_chunk =
                                       [&](const v1::SampleChunk& chunk) {
                                         texts.push_back(chunk.text());
                                         return true;
                                       },
                                   .is_cancelled = [] { return false; }};
  v1::SampleJobRequest request;
  request.set_id(id);
  request.set_text("Once");
  request.set_num_tokens(3);
  // Nothing is saved yet: the answer says how it would be.
  absl::Status status = test->SampleJob(request, listener);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("checkpoint.every"));
  EXPECT_EQ(test.sampled_checkpoints, "");

  test->Tick();
  const auto connection = std::make_shared<FakeConnection>();
  ASSERT_TRUE(test->Connect(RegisterMessage(id, 1), connection).ok());
  v1::WorkerMessage saved = StepMessage(id, 1, 1, 1);
  saved.mutable_report()->mutable_checkpoint()->set_step(1);
  saved.mutable_report()->mutable_checkpoint()->set_attempt(1);
  saved.mutable_report()->mutable_checkpoint()->set_directory("/d");
  ASSERT_TRUE(test->Receive(saved, connection.get()).ok());
  test->Tick();
  test.sampled.resize(2);
  test.sampled[0].set_text("a");
  test.sampled[1].set_text("b");
  EXPECT_EQ(test->SampleJob(request, listener), absl::OkStatus());
  EXPECT_EQ(test.sampled_checkpoints,
            test.Get(id).directory() + "/checkpoints");
  EXPECT_EQ(texts, (std::vector<std::string>{"a", "b"}));
  test.sample_status = absl::ResourceExhaustedError("no memory");
  status = test->SampleJob(request, listener);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr(id));
}

TEST(Coordinator, RefusesSamplesThatAreNone) {
  TestCoordinator test;
  v1::SampleJobRequest good;
  good.set_id(test.Create());
  good.set_text("Once");
  good.set_num_tokens(3);
  const auto code =
      [&](const std::function<void(v1::SampleJobRequest&)>& edit) {
        v1::SampleJobRequest request = good;
        edit(request);
        return test
            ->SampleJob(request, {.on_chunk = nullptr, .is_cancelled = nullptr})
            .code();
      };
  // Good but for the checkpoint.
  EXPECT_EQ(code([](auto&) {}), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code([](auto& r) { r.set_id("nosuchjb"); }),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(code([](auto& r) { r.set_id("../x"); }),
            absl::StatusCode::kNotFound);
  const std::vector<std::function<void(v1::SampleJobRequest&)>> bad = {
      [](auto& r) { r.clear_prompt(); },
      [](auto& r) { r.set_text(std::string(65537, 'x')); },
      [](auto& r) { r.mutable_token_ids(); },
      [](auto& r) { r.mutable_token_ids()->add_ids(-1); },
      [](auto& r) { r.mutable_token_ids()->add_ids(1 << 30); },
      [](auto& r) { r.set_num_tokens(0); },
      [](auto& r) { r.set_num_tokens(65537); },
      [](auto& r) { r.set_temperature(-1); },
      [](auto& r) { r.set_temperature(std::nan("")); },
      [](auto& r) { r.set_temperature(1001); },
      [](auto& r) { r.set_top_k(-1); },
      [](auto& r) { r.set_step(-1); }};
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(code(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
}

TEST(Coordinator, ListsInPages) {
  TestCoordinator test;
  std::vector<std::string> ids;
  for (int i = 0; i < 7; ++i) ids.push_back(test.Create());
  v1::ListJobsRequest request;
  request.set_page_size(3);
  std::vector<std::string> listed;
  int pages = 0;
  do {
    const auto page = test->ListJobs(request);
    ASSERT_TRUE(page.ok()) << page.status();
    for (const v1::Job& job : page->jobs()) listed.push_back(job.id());
    request.set_page_token(page->next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 3);
  std::reverse(ids.begin(), ids.end());
  EXPECT_EQ(listed, ids);

  for (const char* token : {"x", "p", "p-1", "p0", "pp", "' OR 1=1", "p1;"}) {
    request.set_page_token(token);
    EXPECT_EQ(test->ListJobs(request).status().code(),
              absl::StatusCode::kInvalidArgument)
        << token;
  }
  request.clear_page_token();
  request.set_page_size(-1);
  EXPECT_FALSE(test->ListJobs(request).ok());
  request.set_page_size(2000000000);
  EXPECT_EQ(test->ListJobs(request)->jobs_size(), 7);
  request.add_states(v1::STATE_RUNNING);
  EXPECT_EQ(test->ListJobs(request)->jobs_size(), 0);
  request.add_states(static_cast<v1::State>(99));
  EXPECT_FALSE(test->ListJobs(request).ok());
}

TEST(Coordinator, HostileIdsFindNothing) {
  TestCoordinator test;
  const std::string id = test.Create();
  for (const std::string& hostile :
       {std::string(""), std::string("../../etc"), std::string("'; DROP TABLE"),
        std::string("JOB10000"), id + "x", std::string(1 << 20, 'a'),
        std::string("a\0b\0c\0d\0", 8)}) {
    v1::GetJobRequest get;
    get.set_id(hostile);
    const auto job = test->GetJob(get);
    EXPECT_EQ(job.status().code(), absl::StatusCode::kNotFound);
    EXPECT_LT(job.status().message().size(), 300u);
    v1::DeleteJobRequest erase;
    erase.set_id(hostile);
    EXPECT_EQ(test->DeleteJob(erase).code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(test->CancelJob(CancelRequest(hostile)).status().code(),
              absl::StatusCode::kNotFound);
    EXPECT_FALSE(test->EventsAfter(hostile, -1, 10).ok());
    EXPECT_FALSE(test->StepsAfter(hostile, INT64_MIN, 10).ok());
    EXPECT_FALSE(test->FindLog(hostile, 0, 0).ok());
  }
  EXPECT_FALSE(test->FindLog(id, 5, 0).ok());
  EXPECT_FALSE(test->FindLog(id, -1, 0).ok());
  EXPECT_FALSE(test->FindLog(id, 0, 1).ok());
  EXPECT_TRUE(test->FindLog(id, 0, 0).ok());
}

TEST(Coordinator, AnOversizeSpecGetsAClearLimit) {
  TestCoordinator test;
  v1::JobSpec spec = TestCoordinator::Spec();
  spec.mutable_data()->set_train("/" + std::string(5 << 20, 'a'));
  const auto job = test->CreateJob(CreateRequest(spec, ""));
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(job.status().message()),
              HasSubstr("at most 1048576"));
}

// Random requests, reports, deaths and restarts: what is stored is always a
// walk through the table of states, nothing is launched twice, final is final.
TEST(Coordinator, RandomLivesKeepTheRules) {
  constexpr int kSeed = 20240607;
  constexpr int kMoves = 600;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937 random(kSeed);
  TestCoordinator test;
  test.inventory.num_cores = 6;
  v1::JobSpec spec = TestCoordinator::Spec();
  spec.mutable_resources()->set_threads(2);
  std::vector<std::string> ids;
  std::map<std::string, v1::State> finals;
  std::map<std::string, std::shared_ptr<FakeConnection>> connections;
  std::map<std::string, int64_t> sequences;
  for (int move = 0; move < kMoves; ++move) {
    const std::string id = ids.empty() ? "" : ids[random() % ids.size()];
    switch (random() % 9) {
      case 0:
        ids.push_back(test.Create(spec));
        break;
      case 1:
        if (!id.empty() && random() % 3 == 0) {
          test->CancelJob(CancelRequest(id, random() % 2)).IgnoreError();
        }
        break;
      case 2:
        if (!id.empty()) {
          auto connection = std::make_shared<FakeConnection>();
          const int attempt = test.Get(id).attempt();
          if (test->Connect(RegisterMessage(id, attempt, sequences[id] > 0),
                            connection)
                  .ok()) {
            connections[id] = connection;
            test->Receive(StartedMessage(id, attempt), connection.get())
                .IgnoreError();
          }
        }
        break;
      case 3:
      case 4:
        if (connections.count(id)) {
          const v1::Job job = test.Get(id);
          if (test->Receive(StepMessage(id, job.attempt(), sequences[id] + 1,
                                        1 + sequences[id] % 100),
                            connections[id].get())
                  .ok()) {
            ++sequences[id];
          }
        }
        break;
      case 5:
        if (connections.count(id) && random() % 2) {
          const int attempt = test.Get(id).attempt();
          if (test->Receive(FinishedMessage(id, attempt, sequences[id] + 1, 0),
                            connections[id].get())
                  .ok()) {
            ++sequences[id];
          }
        }
        break;
      case 6:
        if (!id.empty() && HasAttempt(test.Get(id).state())) {
          const int attempt = test.Get(id).attempt();
          if (connections.count(id)) {
            test->Disconnect(RegisterMessage(id, attempt),
                             connections[id].get());
            connections.erase(id);
          }
          test.launcher.End(
              id, attempt,
              random() % 2 ? RankExit{-1, 9, false} : RankExit{0, 0, false});
        }
        break;
      case 7:
        test.clock.Advance(absl::Seconds(random() % 20));
        test->Tick();
        break;
      case 8:
        if (random() % 4 == 0) {
          test->Tick();  // what was received is stored
          test.Restart();
          connections.clear();
        }
        break;
    }
    test->Tick();
    for (const std::string& known : ids) {
      const v1::Job job = test.Get(known);
      const auto final_state = finals.find(known);
      if (final_state != finals.end()) {
        ASSERT_EQ(job.state(), final_state->second) << "final is final";
      } else if (IsFinal(job.state())) {
        finals[known] = job.state();
      }
    }
  }
  EXPECT_GT(finals.size(), 10u);
  for (const std::string& id : ids) {
    const auto events = test->EventsAfter(id, 0, 10000);
    v1::State state = v1::STATE_UNSPECIFIED;
    int64_t sequence = 0;
    for (const v1::JobEvent& event : events->events) {
      EXPECT_EQ(event.sequence(), ++sequence);
      if (!event.has_job()) continue;
      EXPECT_TRUE(
          CheckTransition(state, event.job().state(), event.job().reason())
              .ok());
      state = event.job().state();
    }
    EXPECT_EQ(state, test.Get(id).state());
  }
  const std::set<std::string> once(test.launcher.launched.begin(),
                                   test.launcher.launched.end());
  EXPECT_EQ(once.size(), test.launcher.launched.size());
}

TEST(Coordinator, TheThreadStoresAndLaunchesByItself) {
  TestCoordinator test;
  test->Start();
  const int64_t seen = test->WaitForChange(-1, absl::ZeroDuration());
  const std::string id = test.Create();
  // Creation is a change, the launch another.
  const int64_t created = test->WaitForChange(seen, absl::Seconds(20));
  if (test.Get(id).state() == v1::STATE_QUEUED) {
    test->WaitForChange(created, absl::Seconds(20));
  }
  EXPECT_EQ(test.Get(id).state(), v1::STATE_STARTING);
}

}  // namespace
}  // namespace ebb
