// What becomes of timed launches: times of ops that add up to a step.
#include "worker/runtime/op_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "worker/program/cost_profile.h"
#include "worker/runtime/testing/test_job.h"

namespace ebb {
namespace {

class OpTimesTest : public ::testing::Test {
 protected:
  OpTimesTest() {
    program_ = PlanTestJob(SmallJob(), backend_).programs.training;
    launches_.assign(OpTimes::NumLaunches(program_), 0);
    for (size_t n = 0; n < launches_.size(); ++n) {
      launches_[n] = 1e-3 * static_cast<double>(1 + n % 5);
    }
  }

  void AddStep(const std::vector<double>& launches) {
    const absl::Status added = times_.Add(program_, backend_, launches);
    ASSERT_TRUE(added.ok()) << added;
  }
  // Of a step of the program under the times so far.
  double Predicted() const {
    CostProfile profile = RooflineProfile(backend_);
    profile.TakeMeasured(times_.Means(), "");
    const StepSeconds seconds = SecondsOf(program_, profile);
    EXPECT_DOUBLE_EQ(seconds.measured, seconds.total);
    return seconds.total;
  }
  static double Sum(const std::vector<double>& launches) {
    return std::accumulate(launches.begin(), launches.end(), 0.0);
  }

  const Backend backend_ = BuiltInCpuBackend();
  Program program_;
  std::vector<double> launches_;
  OpTimes times_;
};

TEST_F(OpTimesTest, AddUpToTheStep) {
  for (int n = 0; n < 3; ++n) AddStep(launches_);
  EXPECT_NEAR(Predicted(), Sum(launches_), 1e-9 * Sum(launches_));
}

// Every step has some slow runs, another each time: they are its length too.
TEST_F(OpTimesTest, KeepWhatSlowRunsAdd) {
  for (size_t step = 0; step < 4; ++step) {
    std::vector<double> slow = launches_;
    for (size_t n = step; n < slow.size(); n += 7) slow[n] *= 3;
    AddStep(slow);
  }
  EXPECT_NEAR(Predicted(), (1 + 2.0 / 7) * Sum(launches_),
              0.02 * Sum(launches_));
}

TEST_F(OpTimesTest, LeaveOutASlowSpell) {
  std::vector<double> spell = launches_;
  for (double& seconds : spell) seconds *= 5;
  AddStep(launches_);
  AddStep(spell);
  AddStep(launches_);
  EXPECT_NEAR(Predicted(), Sum(launches_), 1e-9 * Sum(launches_));
}

TEST_F(OpTimesTest, RefuseStepsOfAnotherProgram) {
  launches_.pop_back();
  EXPECT_EQ(times_.Add(program_, backend_, launches_).code(),
            absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ebb
