// The table of judgements: one row a situation.
#include "server/supervision.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/job_state.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using Kind = Judgement::Kind;

AttemptView View(v1::State state, SupervisorState supervisor,
                 int num_ranks = 1) {
  AttemptView view;
  view.state = state;
  view.supervisor = supervisor;
  view.ranks.resize(num_ranks);
  view.start_timeout = absl::Minutes(5);
  return view;
}

AttemptView Ended(v1::State state, RankExit exit) {
  AttemptView view = View(state, SupervisorState::kEnded);
  view.ranks[0].exit = exit;
  return view;
}

TEST(Supervision, WaitsForTheSupervisorAndTheRanks) {
  EXPECT_EQ(Judge(View(v1::STATE_STARTING, SupervisorState::kAwaited)),
            std::nullopt);
  AttemptView view = View(v1::STATE_STARTING, SupervisorState::kAlive, 2);
  view.ranks[0].started = true;
  EXPECT_EQ(Judge(view), std::nullopt) << "one of two is ready";
  view.ranks[1].started = true;
  EXPECT_EQ(Judge(view)->kind, Kind::kRun);
  view.state = v1::STATE_RUNNING;
  EXPECT_EQ(Judge(view), std::nullopt);
}

TEST(Supervision, AStepSaysThatTheJobRuns) {
  AttemptView view = View(v1::STATE_STARTING, SupervisorState::kAlive);
  view.ranks[0].stepped = true;
  EXPECT_EQ(Judge(view)->kind, Kind::kRun);
}

TEST(Supervision, SuccessNeedsEveryRank) {
  AttemptView view = View(v1::STATE_RUNNING, SupervisorState::kEnded, 2);
  view.ranks[0].finished_code = 0;
  view.ranks[0].exit = RankExit{0, 0, false};
  view.ranks[1].finished_code = 0;
  view.ranks[1].exit = RankExit{0, 0, false};
  EXPECT_EQ(Judge(view)->state, v1::STATE_SUCCEEDED);
  view.ranks[1].finished_code.reset();
  EXPECT_EQ(Judge(view)->state, v1::STATE_FAILED);
  EXPECT_EQ(Judge(view)->reason, v1::REASON_WORKER_EXITED);
}

TEST(Supervision, NamesTheSignalThatKilledARank) {
  AttemptView view = View(v1::STATE_RUNNING, SupervisorState::kEnded, 4);
  for (RankView& rank : view.ranks) {
    rank.stepped = true;
    rank.exit = RankExit{-1, 15, true};
  }
  view.ranks[2].exit = RankExit{-1, 9, false};
  view.failed_rank = 2;
  const auto judgement = Judge(view);
  EXPECT_EQ(judgement->reason, v1::REASON_WORKER_EXITED);
  EXPECT_EQ(judgement->message, "rank 2: signal 9 (possible out-of-memory)");
  EXPECT_EQ(judgement->rank, 2);
}

TEST(Supervision, WhatARankSaysIsBetterThanHowItEnded) {
  AttemptView view = Ended(v1::STATE_RUNNING, {1, 0, false});
  view.ranks[0].finished_code = static_cast<int>(absl::StatusCode::kDataLoss);
  view.ranks[0].finished_message = "corpus.txt changed";
  view.failed_rank = 0;
  EXPECT_EQ(Judge(view)->reason, v1::REASON_WORKER_ERROR);
  EXPECT_EQ(Judge(view)->message, "rank 0: corpus.txt changed");
}

TEST(Supervision, TheFirstFailureCountsNotThoseItCaused) {
  // Rank 1 died; rank 0 was stopped after it and says so.
  AttemptView view = View(v1::STATE_RUNNING, SupervisorState::kEnded, 2);
  view.ranks[0].finished_code = static_cast<int>(absl::StatusCode::kCancelled);
  view.ranks[0].finished_message = "stopped";
  view.ranks[0].exit = RankExit{1, 0, true};
  view.ranks[1].exit = RankExit{-1, 11, false};
  view.failed_rank = 1;
  EXPECT_EQ(Judge(view)->message, "rank 1: signal 11");
}

TEST(Supervision, AnExitOfZeroWithoutFinishedIsAFailure) {
  const auto judgement = Judge(Ended(v1::STATE_RUNNING, {0, 0, false}));
  EXPECT_EQ(judgement->state, v1::STATE_FAILED);
  EXPECT_EQ(judgement->message, "rank 0: exit code 0 before it was done");
}

TEST(Supervision, ReportsOnTheirWayAreWaitedForButNotForEver) {
  AttemptView view = Ended(v1::STATE_RUNNING, {0, 0, false});
  view.ranks[0].connected = true;
  view.since_end = kDrainGrace - absl::Milliseconds(1);
  EXPECT_EQ(Judge(view), std::nullopt);
  view.since_end = kDrainGrace;
  EXPECT_EQ(Judge(view)->kind, Kind::kEnd);
}

TEST(Supervision, StartTimeoutKillsThenFails) {
  AttemptView view = View(v1::STATE_STARTING, SupervisorState::kAlive);
  view.since_launch = absl::Minutes(5) - absl::Milliseconds(1);
  EXPECT_EQ(Judge(view), std::nullopt);
  view.since_launch = absl::Minutes(5);
  EXPECT_EQ(Judge(view)->kind, Kind::kKill);
  view.supervisor = SupervisorState::kEnded;
  view.ranks[0].exit = RankExit{-1, 9, true};
  EXPECT_EQ(Judge(view)->reason, v1::REASON_START_TIMEOUT);
  EXPECT_THAT(Judge(view)->message, HasSubstr("5m"));
  // The first step ends the wait.
  view = View(v1::STATE_RUNNING, SupervisorState::kAlive);
  view.ranks[0].started = view.ranks[0].stepped = true;
  view.since_launch = absl::Hours(100);
  EXPECT_EQ(Judge(view), std::nullopt);
}

TEST(Supervision, CancelAsksThenTerminatesThenKills) {
  AttemptView view = View(v1::STATE_CANCELLING, SupervisorState::kAlive);
  view.ranks[0].started = true;
  EXPECT_EQ(Judge(view)->kind, Kind::kOrderCancel);
  view.since_cancel = kCancelGrace - absl::Milliseconds(1);
  EXPECT_EQ(Judge(view)->kind, Kind::kOrderCancel);
  view.since_cancel = kCancelGrace;
  EXPECT_EQ(Judge(view)->kind, Kind::kTerminate);
  view.since_cancel = kCancelGrace + kTerminateGrace;
  EXPECT_EQ(Judge(view)->kind, Kind::kKill);
  EXPECT_LT(kTerminateGrace, absl::Seconds(5));
}

TEST(Supervision, CancelNowKillsAtOnce) {
  AttemptView view = View(v1::STATE_CANCELLING, SupervisorState::kAlive);
  view.ranks[0].stepped = true;
  view.cancel_now = true;
  EXPECT_EQ(Judge(view)->kind, Kind::kKill);
}

TEST(Supervision, CancelOfAJobThatNeverStartedAsksNobody) {
  AttemptView view = View(v1::STATE_CANCELLING, SupervisorState::kAlive);
  EXPECT_EQ(Judge(view)->kind, Kind::kTerminate);
}

TEST(Supervision, CancelledJobsEndAsCancelledHoweverTheyDied) {
  AttemptView view = Ended(v1::STATE_CANCELLING, {-1, 9, true});
  EXPECT_EQ(Judge(view)->state, v1::STATE_CANCELLED);
  view.ranks[0].finished_code = 1;
  EXPECT_EQ(Judge(view)->state, v1::STATE_CANCELLED);
  view.ranks[0].finished_code = 0;
  EXPECT_EQ(Judge(view)->state, v1::STATE_SUCCEEDED) << "it was done before";
}

TEST(Supervision, ALostSupervisorIsNamed) {
  const AttemptView view = View(v1::STATE_RUNNING, SupervisorState::kLost);
  EXPECT_EQ(Judge(view)->reason, v1::REASON_SUPERVISOR_LOST);
}

TEST(Supervision, LaunchErrors) {
  AttemptView view = View(v1::STATE_STARTING, SupervisorState::kEnded);
  view.supervisor_error = "cannot start /x/ebb-worker: no such file";
  EXPECT_EQ(Judge(view)->reason, v1::REASON_LAUNCH_FAILED);
  EXPECT_EQ(Judge(view)->message, view.supervisor_error);
  view.state = v1::STATE_RUNNING;
  EXPECT_EQ(Judge(view)->reason, v1::REASON_SUPERVISOR_LOST);
}

TEST(Supervision, AProcessThatDoesNotExitIsKilledAndStillSucceeds) {
  AttemptView view = View(v1::STATE_RUNNING, SupervisorState::kAlive);
  view.ranks[0].finished_code = 0;
  view.since_finished = kExitGrace - absl::Milliseconds(1);
  EXPECT_EQ(Judge(view), std::nullopt);
  view.since_finished = kExitGrace;
  EXPECT_EQ(Judge(view)->kind, Kind::kKill);
  view.supervisor = SupervisorState::kEnded;
  view.ranks[0].exit = RankExit{-1, 9, true};
  EXPECT_EQ(Judge(view)->state, v1::STATE_SUCCEEDED);
}

// Every view of a grid: whatever is judged is allowed by the table of states.
TEST(Supervision, EveryEndIsInTheTableOfStates) {
  int ends = 0;
  for (const v1::State state :
       {v1::STATE_STARTING, v1::STATE_RUNNING, v1::STATE_CANCELLING}) {
    for (const SupervisorState supervisor :
         {SupervisorState::kAwaited, SupervisorState::kAlive,
          SupervisorState::kEnded, SupervisorState::kLost}) {
      for (int bits = 0; bits < 512; ++bits) {
        AttemptView view = View(state, supervisor);
        RankView& rank = view.ranks[0];
        rank.started = bits & 1;
        rank.stepped = bits & 2;
        if (bits & 4) rank.finished_code = bits & 8 ? 0 : 13;
        if (bits & 16) {
          rank.exit =
              RankExit{bits & 32 ? -1 : 1, bits & 32 ? 9 : 0, (bits & 64) != 0};
        }
        if (bits & 128) view.supervisor_error = "error";
        if (bits & 256) {
          view.since_launch = view.since_cancel = view.since_finished =
              absl::Hours(1);
        }
        const auto judgement = Judge(view);
        if (!judgement || judgement->kind != Kind::kEnd) continue;
        ++ends;
        EXPECT_TRUE(
            CheckTransition(state, judgement->state, judgement->reason).ok())
            << v1::State_Name(state) << " " << bits;
      }
    }
  }
  EXPECT_GT(ends, 1000);
}

}  // namespace
}  // namespace ebb
