// Switches of policy: what is asked, stored, ordered, answered, and what a
// coordinator that was killed in between makes of it.
#include <sqlite3.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/violations.h"
#include "server/policy_switch.h"
#include "server/testing/fakes.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

v1::SwitchPolicyRequest SwitchRequest(const std::string& id,
                                      v1::Policy policy) {
  v1::SwitchPolicyRequest request;
  request.set_id(id);
  request.mutable_memory()->set_policy(policy);
  return request;
}

// none needs 50 MiB, cheap 40, full 30; the budget of a job is 60.
class CoordinatorSwitch : public ::testing::Test {
 protected:
  CoordinatorSwitch() {
    test.peaks = {{Policy::kNone, 50 * kMiB},
                  {Policy::kCheap, 40 * kMiB},
                  {Policy::kFull, 30 * kMiB}};
    for (const auto& [policy, peak] : {std::pair{Policy::kCheap, 40 * kMiB},
                                       std::pair{Policy::kFull, 30 * kMiB}}) {
      PlanRung rung;
      rung.memory.policy = policy;
      rung.plan.policy = policy;
      rung.plan.ranks.resize(1);
      rung.plan.ranks[0].peak_bytes = peak;
      test.ladder.push_back(rung);
    }
  }

  static v1::JobSpec Spec() {
    v1::JobSpec spec = TestCoordinator::Spec();
    spec.mutable_memory()->set_budget(60 * kMiB);
    return spec;
  }

  v1::PolicySwitch Switch(const v1::SwitchPolicyRequest& request) {
    const auto response = test->SwitchPolicy(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->policy_switch() : v1::PolicySwitch();
  }
  absl::Status Refusal(const v1::SwitchPolicyRequest& request) {
    return test->SwitchPolicy(request).status();
  }

  // The orders to switch that a rank was sent, by number.
  static std::vector<v1::SwitchOrder> Orders(const FakeConnection& connection) {
    std::vector<v1::SwitchOrder> orders;
    for (const v1::CoordinatorMessage& message : connection.sent()) {
      if (message.order().kind() != v1::Order::KIND_SWITCH) continue;
      orders.push_back(message.order().switch_order());
    }
    return orders;
  }

  // What watchers are told: "1 PENDING", "1 DONE", ...
  std::vector<std::string> Told(const std::string& id) {
    std::vector<std::string> told;
    const auto events = test->EventsAfter(id, 0, 1000);
    EXPECT_TRUE(events.ok());
    for (const v1::JobEvent& event : events->events) {
      if (!event.has_policy_switch()) continue;
      told.push_back(absl::StrCat(
          event.policy_switch().number(), " ",
          v1::PolicySwitch::State_Name(event.policy_switch().state())
              .substr(6)));
    }
    return told;
  }

  void Receive(const v1::WorkerMessage& message,
               const std::shared_ptr<FakeConnection>& connection) {
    const absl::Status status = test->Receive(message, connection.get());
    EXPECT_TRUE(status.ok()) << status;
    test->Tick();
  }

  TestCoordinator test;
};

TEST_F(CoordinatorSwitch, OfAQueuedJobIsAtOnce) {
  const std::string id = test.Create(Spec());
  const v1::PolicySwitch done = Switch(SwitchRequest(id, v1::POLICY_FULL));
  EXPECT_EQ(done.state(), v1::PolicySwitch::STATE_DONE);
  EXPECT_EQ(done.step(), 1);
  EXPECT_EQ(done.before().policy(), "none");
  EXPECT_EQ(done.before().peak_bytes(), 50 * kMiB);
  EXPECT_EQ(done.after().policy(), "full");
  EXPECT_EQ(done.after().peak_bytes(), 30 * kMiB);
  test.Restart();
  const v1::Job job = test.Get(id);
  EXPECT_EQ(job.state(), v1::STATE_QUEUED);
  EXPECT_EQ(job.spec().memory().policy(), v1::POLICY_FULL);
  EXPECT_EQ(job.plan().policy(), "full");
  EXPECT_THAT(Told(id), ElementsAre("1 DONE"));
  const auto connection = BringToRun(test, id);
  EXPECT_EQ(connection->sent()[0].assignment().plan().policy(), "full");
  EXPECT_THAT(Orders(*connection), IsEmpty());
}

TEST_F(CoordinatorSwitch, OfARunningJobIsOrderedAndThenTrue) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  Receive(StepMessage(id, 1, 1, 1), connection);
  const v1::PolicySwitch pending = Switch(SwitchRequest(id, v1::POLICY_FULL));
  EXPECT_EQ(pending.state(), v1::PolicySwitch::STATE_PENDING);
  v1::Job job = test.Get(id);
  EXPECT_EQ(job.plan().policy(), "none") << "what is in force";
  ASSERT_EQ(job.pending_switches_size(), 1);
  const auto orders = Orders(*connection);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].number(), 1);
  EXPECT_EQ(orders[0].plan().policy(), "full");
  EXPECT_EQ(orders[0].at_step(), 0);
  EXPECT_EQ(orders[0].ladder_size(), 2);

  Receive(SwitchedMessage(id, 1, 2, 1, 3), connection);
  test.Restart();
  job = test.Get(id);
  EXPECT_EQ(job.spec().memory().policy(), v1::POLICY_FULL);
  EXPECT_EQ(job.plan().policy(), "full");
  EXPECT_EQ(job.pending_switches_size(), 0);
  EXPECT_EQ(job.num_switches(), 1);
  EXPECT_EQ(job.last_switch().step(), 3);
  EXPECT_EQ(job.last_switch().attempt(), 1);
  EXPECT_EQ(job.last_switch().duration_seconds(), 0.25);
  EXPECT_THAT(Told(id), ElementsAre("1 PENDING", "1 DONE"));
  const std::string page = test.Page();
  EXPECT_THAT(
      page, HasSubstr(absl::StrCat("ebb_train_policy_switches_total{job_id=\"",
                                   id, "\"} 1\n")));
  EXPECT_THAT(page, HasSubstr("policy=\"full\""));
}

TEST_F(CoordinatorSwitch, MetricsFollowThePlanInForce) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  v1::SwitchPolicyRequest request = SwitchRequest(id, v1::POLICY_FULL);
  request.mutable_memory()->set_budget(35 * kMiB);
  Switch(request);
  const std::string budget = absl::StrCat(
      "ebb_train_memory_budget_bytes{job_id=\"", id, "\",rank=\"0\"} ");
  EXPECT_THAT(test.Page(), HasSubstr(absl::StrCat(budget, 60 * kMiB)));
  EXPECT_THAT(test.Page(), HasSubstr("ebb_policy_switches_total 0"));
  Receive(SwitchedMessage(id, 1, 1, 1, 1), connection);
  EXPECT_THAT(test.Page(), HasSubstr(absl::StrCat(budget, 35 * kMiB)));
  EXPECT_THAT(test.Page(), HasSubstr("ebb_policy_switches_total 1"));
}

TEST_F(CoordinatorSwitch, ARankThatComesBackIsAskedAgain) {
  const std::string id = test.Create(Spec());
  const auto first = BringToRun(test, id);
  test->Disconnect(RegisterMessage(id, 1), first.get());
  Switch(SwitchRequest(id, v1::POLICY_CHEAP));
  EXPECT_THAT(Orders(*first), IsEmpty());
  // Also one that was killed after the order, or before it.
  for (int round = 0; round < 2; ++round) {
    test.Restart();
    const auto again = std::make_shared<FakeConnection>();
    ASSERT_TRUE(test->Connect(RegisterMessage(id, 1, true), again).ok());
    const auto orders = Orders(*again);
    ASSERT_EQ(orders.size(), 1u);
    EXPECT_EQ(orders[0].number(), 1);
    EXPECT_EQ(orders[0].plan().policy(), "cheap");
  }
}

TEST_F(CoordinatorSwitch, AnAnswerGivenBeforeTheRestartIsTakenOnce) {
  const std::string id = test.Create(Spec());
  const auto first = BringToRun(test, id);
  Switch(SwitchRequest(id, v1::POLICY_CHEAP));
  // The rank's answer does not reach the store.
  test.Restart();
  const auto again = std::make_shared<FakeConnection>();
  ASSERT_TRUE(test->Connect(RegisterMessage(id, 1, true), again).ok());
  Receive(SwitchedMessage(id, 1, 1, 1, 7), again);
  // And once more: it was not acknowledged in time.
  Receive(SwitchedMessage(id, 1, 1, 1, 7), again);
  EXPECT_EQ(test.Get(id).plan().policy(), "cheap");
  EXPECT_EQ(test.Get(id).num_switches(), 1);
  EXPECT_THAT(Told(id), ElementsAre("1 PENDING", "1 DONE"));
}

TEST_F(CoordinatorSwitch, OfAStartingJobGoesWithItsAssignment) {
  const std::string id = test.Create(Spec());
  test->Tick();
  EXPECT_EQ(Switch(SwitchRequest(id, v1::POLICY_FULL)).state(),
            v1::PolicySwitch::STATE_PENDING);
  const auto connection = std::make_shared<FakeConnection>();
  ASSERT_TRUE(test->Connect(RegisterMessage(id, 1), connection).ok());
  ASSERT_EQ(connection->sent().size(), 2u);
  EXPECT_EQ(connection->sent()[0].assignment().plan().policy(), "none");
  EXPECT_EQ(connection->sent()[1].order().switch_order().plan().policy(),
            "full");
}

TEST_F(CoordinatorSwitch, TheLaterOfTwoWins) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  Switch(SwitchRequest(id, v1::POLICY_FULL));
  Switch(SwitchRequest(id, v1::POLICY_CHEAP));
  EXPECT_EQ(Orders(*connection).size(), 3u) << "the first one is sent again";
  Receive(SwitchedMessage(id, 1, 1, 2, 4), connection);
  const v1::Job job = test.Get(id);
  EXPECT_EQ(job.plan().policy(), "cheap");
  EXPECT_EQ(job.num_switches(), 1);
  EXPECT_THAT(Told(id),
              ElementsAre("1 PENDING", "2 PENDING", "1 SUPERSEDED", "2 DONE"));
  // Both in turn, where the rank was quick.
  Switch(SwitchRequest(id, v1::POLICY_FULL));
  Switch(SwitchRequest(id, v1::POLICY_NONE));
  Receive(SwitchedMessage(id, 1, 2, 3, 5), connection);
  EXPECT_EQ(test.Get(id).plan().policy(), "full");
  Receive(SwitchedMessage(id, 1, 3, 4, 6), connection);
  EXPECT_EQ(test.Get(id).plan().policy(), "none");
  EXPECT_EQ(test.Get(id).last_switch().before().policy(), "full");
}

TEST_F(CoordinatorSwitch, AskedTwiceIsDoneOnce) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  const v1::PolicySwitch first = Switch(SwitchRequest(id, v1::POLICY_FULL));
  EXPECT_EQ(Switch(SwitchRequest(id, v1::POLICY_FULL)).number(),
            first.number());
  v1::SwitchPolicyRequest later = SwitchRequest(id, v1::POLICY_FULL);
  later.set_at_step(50);
  EXPECT_NE(Switch(later).number(), first.number());
  Receive(SwitchedMessage(id, 1, 1, 1, 2), connection);
  EXPECT_EQ(test.Get(id).pending_switches_size(), 1);
  Receive(SwitchedMessage(id, 1, 2, 2, 50), connection);
  // What is in force needs no order.
  const v1::PolicySwitch none = Switch(SwitchRequest(id, v1::POLICY_FULL));
  EXPECT_EQ(none.number(), 0);
  EXPECT_EQ(none.state(), v1::PolicySwitch::STATE_DONE);
  EXPECT_EQ(test.Get(id).pending_switches_size(), 0);
}

TEST_F(CoordinatorSwitch, ForTheNextRunWaitsForOne) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  v1::SwitchPolicyRequest request = SwitchRequest(id, v1::POLICY_FULL);
  request.set_next_run(true);
  EXPECT_EQ(Switch(request).state(), v1::PolicySwitch::STATE_PENDING);
  EXPECT_THAT(Orders(*connection), IsEmpty());
  test.Restart();
  EXPECT_EQ(test.Get(id).plan().policy(), "none");
  ASSERT_EQ(test.Get(id).pending_switches_size(), 1);

  // An attempt that never was launched is followed by another: it is the next.
  const std::string other = test.Create(Spec());
  request.set_id(other);
  test.inventory.num_cores = 8;
  test->Tick();
  Switch(request);
  test.launcher.attempts.erase(other + "/1");
  test.Restart();
  EXPECT_EQ(test.Get(other).attempt(), 2);
  EXPECT_EQ(test.Get(other).plan().policy(), "full");
  EXPECT_EQ(test.Get(other).spec().memory().policy(), v1::POLICY_FULL);
  EXPECT_EQ(test.Get(other).pending_switches_size(), 0);
  EXPECT_THAT(Told(other), ElementsAre("1 PENDING", "1 DONE"));
}

// What waits for the next attempt is not what trains: a switch of that starts
// from what it has, and leaves the other waiting.
TEST_F(CoordinatorSwitch, OneForTheNextRunDoesNotMoveThoseOfNow) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  v1::SwitchPolicyRequest next = SwitchRequest(id, v1::POLICY_CHEAP);
  next.mutable_memory()->set_offload_optimizer(v1::OFFLOAD_HOST);
  next.set_next_run(true);
  Switch(next);
  // Has it already.
  EXPECT_EQ(Switch(SwitchRequest(id, v1::POLICY_NONE)).number(), 0);
  EXPECT_EQ(Switch(SwitchRequest(id, v1::POLICY_FULL)).number(), 2);
  EXPECT_EQ(Switch(next).number(), 1);
  Receive(SwitchedMessage(id, 1, 1, 2, 2), connection);
  v1::Job job = test.Get(id);
  EXPECT_EQ(job.spec().memory().policy(), v1::POLICY_FULL);
  EXPECT_EQ(job.spec().memory().offload_optimizer(), v1::OFFLOAD_NONE);
  ASSERT_EQ(job.pending_switches_size(), 1);
  EXPECT_EQ(job.pending_switches(0).number(), 1);
  // One more for the next attempt starts from what that would have.
  next.mutable_memory()->clear_offload_optimizer();
  next.mutable_memory()->set_policy(v1::POLICY_FULL);
  EXPECT_EQ(Switch(next).number(), 3);
  EXPECT_THAT(Told(id), ElementsAre("1 PENDING", "2 PENDING", "2 DONE",
                                    "1 SUPERSEDED", "3 PENDING"));
  EXPECT_EQ(test.Get(id).pending_switches_size(), 1);
}

TEST(PolicySwitch, FieldsOfEncodeChangeOneByOne) {
  v1::MemorySpec base;
  base.mutable_encode()->set_format(v1::ENCODE_FORMAT_FP8_E4M3);
  base.mutable_encode()->add_values("gelu");
  v1::MemorySpec asked;
  asked.mutable_encode()->set_format(v1::ENCODE_FORMAT_BF16);
  v1::MemorySpec merged = AskedMemory(base, asked);
  EXPECT_EQ(merged.encode().format(), v1::ENCODE_FORMAT_BF16);
  EXPECT_THAT(merged.encode().values(), ElementsAre("gelu"));
  asked.Clear();
  asked.mutable_encode()->add_values("L*.qkv.y");
  merged = AskedMemory(base, asked);
  EXPECT_EQ(merged.encode().format(), v1::ENCODE_FORMAT_FP8_E4M3);
  EXPECT_THAT(merged.encode().values(), ElementsAre("L*.qkv.y"));
  asked.Clear();
  asked.mutable_encode()->set_format(v1::ENCODE_FORMAT_NONE);
  EXPECT_THAT(AskedMemory(base, asked).encode().values(), IsEmpty());
  EXPECT_THAT(AskedMemory(base, v1::MemorySpec()).encode().values(),
              ElementsAre("gelu"));
}

// An attempt begins with what was due and then with what waited for it; what is
// for a later step waits on.
TEST(PolicySwitch, AnAttemptBeginsWithTheNewestOfBothKinds) {
  v1::Job job;
  v1::JobPlans plans;
  const auto add = [&](v1::Policy policy, int64_t at_step, bool next_run) {
    v1::PendingPlan wanted;
    wanted.mutable_planned()->mutable_memory()->set_policy(policy);
    AddSwitch(wanted, at_step, next_run, "", {&job, &plans});
  };
  add(v1::POLICY_CHEAP, 0, true);
  add(v1::POLICY_SELECTIVE, 0, false);
  add(v1::POLICY_FULL, 0, true);
  add(v1::POLICY_SQRT, 50, false);
  EXPECT_EQ(NewestMemory(job, plans, true).policy(), v1::POLICY_FULL);
  EXPECT_EQ(NewestMemory(job, plans, false).policy(), v1::POLICY_SQRT);
  std::vector<std::string> ended;
  for (const v1::PolicySwitch& one : TakeDueSwitches(10, {&job, &plans})) {
    ended.push_back(
        absl::StrCat(one.number(), " ",
                     v1::PolicySwitch::State_Name(one.state()).substr(6)));
  }
  EXPECT_THAT(ended, ElementsAre("2 DONE", "1 SUPERSEDED", "3 DONE"));
  EXPECT_EQ(job.spec().memory().policy(), v1::POLICY_FULL);
  ASSERT_EQ(job.pending_switches_size(), 1);
  EXPECT_EQ(job.pending_switches(0).number(), 4);
  ASSERT_EQ(plans.pending_size(), 1);
  EXPECT_EQ(plans.pending(0).number(), 4);
}

TEST_F(CoordinatorSwitch, ARankThatCannotSaysWhy) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  Switch(SwitchRequest(id, v1::POLICY_CHEAP));
  v1::WorkerMessage answer = SwitchedMessage(id, 1, 1, 1, 2);
  answer.mutable_report()->mutable_switched()->set_code(
      static_cast<int>(absl::StatusCode::kResourceExhausted));
  answer.mutable_report()->mutable_switched()->set_message("no memory");
  Receive(answer, connection);
  const v1::Job job = test.Get(id);
  EXPECT_EQ(job.plan().policy(), "none");
  EXPECT_EQ(job.spec().memory().policy(), v1::POLICY_NONE);
  EXPECT_EQ(job.num_switches(), 0);
  EXPECT_EQ(job.last_switch().state(), v1::PolicySwitch::STATE_REFUSED);
  EXPECT_EQ(job.last_switch().message(), "no memory: rank 0");
  EXPECT_EQ(job.last_switch().code(), 8);
}

TEST_F(CoordinatorSwitch, ARankMayTakeAPlanOfTheLadder) {
  const std::string id = test.Create(Spec());
  test->Tick();
  auto connection = std::make_shared<FakeConnection>();
  ASSERT_TRUE(test->Connect(RegisterMessage(id, 1), connection).ok());
  const v1::Assignment assignment = connection->sent()[0].assignment();
  ASSERT_EQ(assignment.ladder_size(), 2);
  EXPECT_EQ(assignment.ladder(0).policy(), "cheap");
  EXPECT_EQ(assignment.ladder(1).policy(), "full");
  ASSERT_TRUE(test->Receive(StartedMessage(id, 1), connection.get()).ok());
  v1::WorkerMessage report = SwitchedMessage(id, 1, 1, 0, 1);
  v1::Switched& switched = *report.mutable_report()->mutable_switched();
  switched.set_code(8);
  switched.set_message("need 50 MiB, have 45 MiB");
  switched.set_rung(1);
  Receive(report, connection);
  v1::Job job = test.Get(id);
  EXPECT_EQ(job.plan().policy(), "cheap");
  EXPECT_EQ(job.spec().memory().policy(), v1::POLICY_CHEAP);
  EXPECT_EQ(job.spec().memory().budget(), 60 * kMiB);
  EXPECT_EQ(job.last_switch().cause(), v1::PolicySwitch::CAUSE_OUT_OF_MEMORY);
  EXPECT_EQ(job.last_switch().message(), "need 50 MiB, have 45 MiB");
  EXPECT_EQ(job.num_switches(), 1);

  // From there one step further down, with a switch that found no memory.
  Switch(SwitchRequest(id, v1::POLICY_NONE));
  report = SwitchedMessage(id, 1, 2, 2, 5);
  report.mutable_report()->mutable_switched()->set_code(8);
  report.mutable_report()->mutable_switched()->set_rung(1);
  Receive(report, connection);
  job = test.Get(id);
  EXPECT_EQ(job.plan().policy(), "full");
  EXPECT_EQ(job.last_switch().before().policy(), "cheap");
  EXPECT_THAT(Told(id),
              ElementsAre("1 DONE", "2 PENDING", "2 REFUSED", "3 DONE"));
  // The switch went by the plan before it.
  const std::string of_job = absl::StrCat("{job_id=\"", id, "\",phase=\"");
  for (const std::string& line :
       {absl::StrCat("out_of_memory_total", of_job, "start\"} 1"),
        absl::StrCat("out_of_memory_total", of_job, "switch\"} 1"),
        absl::StrCat("allocation_retries_total", of_job, "start\"} 1"),
        absl::StrCat("allocation_retries_total", of_job, "switch\"} 2")}) {
    EXPECT_THAT(test.Page(), HasSubstr(absl::StrCat("ebb_train_", line)));
  }

  // What is no plan of the ladder changes nothing but is acknowledged.
  report = SwitchedMessage(id, 1, 3, 0, 6);
  report.mutable_report()->mutable_switched()->set_rung(1);
  Receive(report, connection);
  EXPECT_EQ(test.Get(id).plan().policy(), "full");
  EXPECT_EQ(connection->sent().back().acknowledge().sequence(), 3);
}

// Nothing is taken out for an answer that no rank can give.
TEST_F(CoordinatorSwitch, AnAnswerWithAPlanOfNoLadderChangesNothing) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  Switch(SwitchRequest(id, v1::POLICY_FULL));
  for (const auto& [sequence, code] : {std::pair{1, 8}, std::pair{2, 0}}) {
    v1::WorkerMessage report = SwitchedMessage(id, 1, sequence, 1, 5);
    report.mutable_report()->mutable_switched()->set_code(code);
    report.mutable_report()->mutable_switched()->set_rung(77);
    Receive(report, connection);
    EXPECT_EQ(test.Get(id).pending_switches_size(), 1);
    EXPECT_THAT(Told(id), ElementsAre("1 PENDING"));
  }
  Receive(SwitchedMessage(id, 1, 3, 1, 6), connection);
  EXPECT_THAT(Told(id), ElementsAre("1 PENDING", "1 DONE"));
}

TEST_F(CoordinatorSwitch, ALowerBudgetTakesTheNextPlanThatFits) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  v1::SwitchPolicyRequest request = SwitchRequest(id, v1::POLICY_NONE);
  request.mutable_memory()->set_budget(35 * kMiB);
  const v1::PolicySwitch pending = Switch(request);
  EXPECT_EQ(pending.after().policy(), "full");
  EXPECT_EQ(pending.after().budget_bytes(), 35 * kMiB);
  EXPECT_THAT(pending.message(), HasSubstr("full does"));
  Receive(SwitchedMessage(id, 1, 1, 1, 2), connection);
  const v1::Job job = test.Get(id);
  EXPECT_EQ(job.spec().memory().policy(), v1::POLICY_FULL);
  EXPECT_EQ(job.spec().memory().budget(), 35 * kMiB);
  // Another policy is meant as it is asked.
  request = SwitchRequest(id, v1::POLICY_NONE);
  const absl::Status refused = Refusal(request);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(absl::StrCat("need ", 50 * kMiB)));
  request.mutable_memory()->set_policy(v1::POLICY_FULL);
  request.mutable_memory()->set_budget(kMiB);
  EXPECT_EQ(Refusal(request).code(), absl::StatusCode::kResourceExhausted)
      << "nothing fits";
}

TEST_F(CoordinatorSwitch, AllMistakesAtOnce) {
  const std::string id = test.Create(Spec());
  v1::SwitchPolicyRequest request = SwitchRequest(id, v1::POLICY_CHEAP);
  request.mutable_memory()->set_group(2);
  request.mutable_memory()->add_recompute("gelu");
  request.mutable_memory()->set_budget(-1);
  std::vector<std::string> fields;
  const absl::Status status = Refusal(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const v1::Violation& violation : GetViolations(status)) {
    fields.push_back(violation.field());
  }
  EXPECT_THAT(fields, ::testing::UnorderedElementsAre(
                          "memory.group", "memory.recompute", "memory.budget"));
  EXPECT_EQ(test.Get(id).plan().policy(), "none");
}

TEST_F(CoordinatorSwitch, WhatBelongsToAPolicyGoesWithIt) {
  v1::MemorySpec base;
  base.set_policy(v1::POLICY_FULL);
  base.set_group(4);
  base.set_budget(7);
  v1::MemorySpec asked;
  asked.set_policy(v1::POLICY_CHEAP);
  v1::MemorySpec merged = AskedMemory(base, asked);
  EXPECT_EQ(merged.policy(), v1::POLICY_CHEAP);
  EXPECT_EQ(merged.group(), 1);
  EXPECT_EQ(merged.budget(), 7);
  asked.set_policy(v1::POLICY_FULL);
  asked.set_budget(5);
  merged = AskedMemory(base, asked);
  EXPECT_EQ(merged.group(), 4);
  EXPECT_EQ(merged.budget(), 5);
  base.set_policy(v1::POLICY_CUSTOM);
  base.add_recompute("gelu");
  asked.set_policy(v1::POLICY_CUSTOM);
  asked.add_recompute("softmax");
  EXPECT_THAT(AskedMemory(base, asked).recompute(), ElementsAre("softmax"));
  asked.clear_policy();
  asked.clear_recompute();
  EXPECT_THAT(AskedMemory(base, asked).recompute(), ElementsAre("gelu"));
}

TEST_F(CoordinatorSwitch, TheDirectoryGoesWhereNothingIsOnDisk) {
  v1::MemorySpec base;
  base.set_offload(v1::OFFLOAD_DISK);
  base.set_offload_dir("/values");
  v1::MemorySpec asked;
  asked.set_policy(v1::POLICY_CHEAP);
  EXPECT_EQ(AskedMemory(base, asked).offload_dir(), "/values");
  asked.set_offload(v1::OFFLOAD_HOST);
  EXPECT_EQ(AskedMemory(base, asked).offload_dir(), "");
  // Asked for, it is the validator's to say what is wrong.
  asked.set_offload_dir("/other");
  EXPECT_EQ(AskedMemory(base, asked).offload_dir(), "/other");
}

// What the ranks will not find is told at once.
TEST_F(CoordinatorSwitch, ToDiskNeedsADirectory) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  v1::SwitchPolicyRequest request = SwitchRequest(id, v1::POLICY_NONE);
  request.mutable_memory()->set_offload(v1::OFFLOAD_DISK);
  request.mutable_memory()->set_offload_dir("/no/such/directory");
  const absl::Status refused = Refusal(request);
  EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("memory.offload_dir: got /no/such/directory"));
  request.mutable_memory()->set_offload_dir(testing::TempDir());
  Switch(request);
  ASSERT_EQ(Orders(*connection).size(), 1u);
  EXPECT_EQ(Orders(*connection)[0].offload_dir(), testing::TempDir());
}

TEST_F(CoordinatorSwitch, RefusalsByState) {
  EXPECT_TRUE(
      absl::IsNotFound(Refusal(SwitchRequest("nothing1", v1::POLICY_FULL))));
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  Receive(StepMessage(id, 1, 1, 1), connection);
  Receive(StepMessage(id, 1, 2, 2), connection);
  v1::SwitchPolicyRequest request = SwitchRequest(id, v1::POLICY_FULL);
  for (const int64_t step : {1, 2}) {
    request.set_at_step(step);
    const absl::Status past = Refusal(request);
    EXPECT_EQ(past.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(past.message()), HasSubstr("is at step 2"));
  }
  for (const int64_t step : {-1, 101}) {
    request.set_at_step(step);
    EXPECT_EQ(Refusal(request).code(), absl::StatusCode::kInvalidArgument);
  }
  request.set_at_step(3);
  request.set_next_run(true);
  EXPECT_EQ(Refusal(request).code(), absl::StatusCode::kInvalidArgument);
  request.set_at_step(0);
  request.set_next_run(false);
  v1::CancelJobRequest cancel;
  cancel.set_id(id);
  ASSERT_TRUE(test->CancelJob(cancel).ok());
  EXPECT_EQ(Refusal(request).code(), absl::StatusCode::kFailedPrecondition);
  test->Disconnect(RegisterMessage(id, 1), connection.get());
  test.launcher.End(id, 1, {-1, 15, true});
  test->Tick();
  ASSERT_EQ(test.Get(id).state(), v1::STATE_CANCELLED);
  const absl::Status ended = Refusal(request);
  EXPECT_EQ(ended.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(ended.message()), HasSubstr("has ended: cancelled"));
}

TEST_F(CoordinatorSwitch, NamedStepsReachTheRank) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  v1::SwitchPolicyRequest request = SwitchRequest(id, v1::POLICY_FULL);
  request.set_at_step(40);
  Switch(request);
  ASSERT_EQ(Orders(*connection).size(), 1u);
  EXPECT_EQ(Orders(*connection)[0].at_step(), 40);
}

TEST_F(CoordinatorSwitch, OnlySoManyWait) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  v1::SwitchPolicyRequest request = SwitchRequest(id, v1::POLICY_FULL);
  for (int n = 0; n < kMaxPendingSwitches; ++n) {
    request.set_at_step(50 + n);
    Switch(request);
  }
  request.set_at_step(99);
  EXPECT_EQ(Refusal(request).code(), absl::StatusCode::kUnavailable);
}

TEST_F(CoordinatorSwitch, AStateThatIsLaidOutOtherwiseNeedsANewAttempt) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  test.plan.ranks[0].state_arena_bytes = 77;
  v1::SwitchPolicyRequest request = SwitchRequest(id, v1::POLICY_FULL);
  EXPECT_EQ(Refusal(request).code(), absl::StatusCode::kFailedPrecondition);
  request.set_next_run(true);
  EXPECT_EQ(Switch(request).state(), v1::PolicySwitch::STATE_PENDING);
}

// The state arena may be as large, and lie elsewhere.
TEST_F(CoordinatorSwitch, AStateThatMovesNeedsANewAttempt) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  Decision& decision = test.plan.decisions.emplace_back();
  decision.value = kOptimizerState;
  decision.decision = ActivationDecision::kOffloadHost;
  v1::SwitchPolicyRequest request = SwitchRequest(id, v1::POLICY_NONE);
  request.mutable_memory()->set_offload_optimizer(v1::OFFLOAD_HOST);
  const absl::Status refused = Refusal(request);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("(--next-run)"));
  request.set_next_run(true);
  EXPECT_EQ(Switch(request).state(), v1::PolicySwitch::STATE_PENDING);
}

// kill -9 between the rows of one decision is impossible: they are one
// transaction.
TEST_F(CoordinatorSwitch, IsStoredWholeOrNotAtAll) {
  const std::string id = test.Create(Spec());
  const auto connection = BringToRun(test, id);
  sqlite3* second = nullptr;
  ASSERT_EQ(sqlite3_open((test.directory + "/ebbd.db").c_str(), &second),
            SQLITE_OK);
  const auto run = [&](const char* sql) {
    EXPECT_EQ(sqlite3_exec(second, sql, nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(second);
  };
  run("CREATE TRIGGER full BEFORE INSERT ON events "
      "BEGIN SELECT RAISE(ABORT, 'disk is full'); END");
  EXPECT_FALSE(Refusal(SwitchRequest(id, v1::POLICY_FULL)).ok());
  run("DROP TRIGGER full");
  sqlite3_close(second);
  EXPECT_THAT(Orders(*connection), IsEmpty())
      << "no effect before it is stored";
  EXPECT_EQ(test.Get(id).pending_switches_size(), 0);
  EXPECT_EQ(Switch(SwitchRequest(id, v1::POLICY_FULL)).number(), 1);
  EXPECT_EQ(Orders(*connection).size(), 1u);
}

}  // namespace
}  // namespace ebb
