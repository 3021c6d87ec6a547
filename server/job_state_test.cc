// Walks every pair of states with every reason.
#include "server/job_state.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

// From -> states that may follow, as a person would draw it.
const std::map<v1::State, std::set<v1::State>> kPicture = {
    {v1::STATE_UNSPECIFIED, {v1::STATE_QUEUED}},
    {v1::STATE_QUEUED, {v1::STATE_STARTING, v1::STATE_CANCELLED}},
    {v1::STATE_STARTING,
     {v1::STATE_STARTING, v1::STATE_RUNNING, v1::STATE_CANCELLING,
      v1::STATE_SUCCEEDED, v1::STATE_FAILED}},
    {v1::STATE_RUNNING,
     {v1::STATE_CANCELLING, v1::STATE_SUCCEEDED, v1::STATE_FAILED}},
    {v1::STATE_CANCELLING, {v1::STATE_CANCELLED, v1::STATE_SUCCEEDED}},
    {v1::STATE_SUCCEEDED, {}},
    {v1::STATE_FAILED, {}},
    {v1::STATE_CANCELLED, {}},
};

bool SomeReasonAllows(v1::State from, v1::State to) {
  for (int reason = v1::Reason_MIN; reason <= v1::Reason_MAX; ++reason) {
    if (CheckTransition(from, to, static_cast<v1::Reason>(reason)).ok()) {
      return true;
    }
  }
  return false;
}

TEST(JobState, EveryPairIsAsDrawn) {
  for (int from = v1::State_MIN; from <= v1::State_MAX; ++from) {
    const auto next = kPicture.find(static_cast<v1::State>(from));
    ASSERT_NE(next, kPicture.end()) << "state " << from << " is not drawn";
    for (int to = v1::State_MIN; to <= v1::State_MAX; ++to) {
      EXPECT_EQ(SomeReasonAllows(static_cast<v1::State>(from),
                                 static_cast<v1::State>(to)),
                next->second.count(static_cast<v1::State>(to)) > 0)
          << v1::State_Name(from) << " to " << v1::State_Name(to);
    }
  }
}

TEST(JobState, EveryReasonIsUsedAndFitsItsState) {
  const std::map<v1::State, std::set<v1::Reason>> reasons = {
      {v1::STATE_QUEUED, {v1::REASON_WAITING}},
      {v1::STATE_STARTING, {v1::REASON_UNSPECIFIED}},
      {v1::STATE_RUNNING, {v1::REASON_UNSPECIFIED}},
      {v1::STATE_CANCELLING, {v1::REASON_USER_REQUEST}},
      {v1::STATE_SUCCEEDED, {v1::REASON_COMPLETED}},
      {v1::STATE_FAILED,
       {v1::REASON_WORKER_ERROR, v1::REASON_WORKER_EXITED,
        v1::REASON_LAUNCH_FAILED, v1::REASON_START_TIMEOUT,
        v1::REASON_SUPERVISOR_LOST}},
      {v1::STATE_CANCELLED, {v1::REASON_USER_REQUEST}},
  };
  std::set<v1::Reason> used;
  std::set<std::pair<v1::State, v1::State>> pairs;
  for (const Transition& transition : Transitions()) {
    EXPECT_EQ(reasons.at(transition.to).count(transition.reason), 1u)
        << v1::State_Name(transition.to) << " for "
        << v1::Reason_Name(transition.reason);
    used.insert(transition.reason);
  }
  EXPECT_EQ(used.size(), static_cast<size_t>(v1::Reason_ARRAYSIZE));
}

TEST(JobState, FinalStatesEndEverything) {
  for (const v1::State state : AllStates()) {
    bool leaves = false;
    for (const v1::State to : AllStates()) {
      leaves |= SomeReasonAllows(state, to);
    }
    EXPECT_EQ(leaves, !IsFinal(state)) << v1::State_Name(state);
    EXPECT_FALSE(IsFinal(state) && HasAttempt(state));
  }
}

TEST(JobState, RefusalNamesStatesAndReason) {
  const absl::Status status = CheckTransition(
      v1::STATE_SUCCEEDED, v1::STATE_RUNNING, v1::REASON_UNSPECIFIED);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("succeeded"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("running"));
}

TEST(JobState, LabelsAreDistinct) {
  std::set<std::string> labels;
  for (const v1::State state : AllStates()) labels.insert(StateLabel(state));
  EXPECT_EQ(labels.size(), 7u);
  EXPECT_STREQ(StateLabel(static_cast<v1::State>(99)), "unspecified");
  EXPECT_STREQ(ReasonLabel(static_cast<v1::Reason>(-3)), "unspecified");
}

}  // namespace
}  // namespace ebb
