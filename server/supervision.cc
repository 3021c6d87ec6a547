// The rules of judgement, one function each.
#include "server/supervision.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ebb {
namespace {

constexpr int kSigKill = 9;
constexpr int kCodeOk = static_cast<int>(absl::StatusCode::kOk);

bool AllFinishedWell(const AttemptView& view) {
  return !view.ranks.empty() &&
         std::all_of(view.ranks.begin(), view.ranks.end(),
                     [](const auto& r) { return r.finished_code == kCodeOk; });
}

bool AllFinished(const AttemptView& view) {
  return !view.ranks.empty() &&
         std::all_of(view.ranks.begin(), view.ranks.end(),
                     [](const auto& r) { return r.finished_code.has_value(); });
}

bool AnyStepped(const AttemptView& view) {
  return std::any_of(view.ranks.begin(), view.ranks.end(),
                     [](const auto& r) { return r.stepped; });
}

bool AllStarted(const AttemptView& view) {
  return !view.ranks.empty() &&
         std::all_of(view.ranks.begin(), view.ranks.end(),
                     [](const auto& r) { return r.started; });
}

bool StartTimedOut(const AttemptView& view) {
  return !AnyStepped(view) && !AllFinished(view) &&
         view.since_launch >= view.start_timeout;
}

Judgement End(v1::State state, v1::Reason reason, std::string message,
              int rank = -1) {
  Judgement judgement;
  judgement.kind = Judgement::Kind::kEnd;
  judgement.state = state;
  judgement.reason = reason;
  judgement.message = std::move(message);
  judgement.rank = rank;
  return judgement;
}

Judgement Act(Judgement::Kind kind) {
  Judgement judgement;
  judgement.kind = kind;
  return judgement;
}

std::string ExitText(int rank, const RankExit& exit) {
  if (exit.signal == kSigKill) {
    return absl::StrCat("rank ", rank, ": signal 9 (possible out-of-memory)");
  }
  if (exit.signal != 0) {
    return absl::StrCat("rank ", rank, ": signal ", exit.signal);
  }
  return absl::StrCat("rank ", rank, ": exit code ", exit.exit_code,
                      exit.exit_code == 0 ? " before it was done" : "");
}

bool FailedByItself(const RankView& rank) {
  return rank.exit && !rank.exit->stopped &&
         (rank.exit->signal != 0 || rank.exit->exit_code != 0);
}

// The rank to blame for an exit; -1: none.
int BlamedRank(const AttemptView& view) {
  const int size = static_cast<int>(view.ranks.size());
  if (view.failed_rank >= 0 && view.failed_rank < size &&
      view.ranks[view.failed_rank].exit) {
    return view.failed_rank;
  }
  for (int r = 0; r < size; ++r) {
    if (FailedByItself(view.ranks[r])) return r;
  }
  return -1;
}

// All processes are gone: the final state.
Judgement Verdict(const AttemptView& view) {
  if (AllFinishedWell(view)) {
    return End(v1::STATE_SUCCEEDED, v1::REASON_COMPLETED, "");
  }
  if (view.state == v1::STATE_CANCELLING) {
    return End(v1::STATE_CANCELLED, v1::REASON_USER_REQUEST, "");
  }
  // What a rank says of itself is better than how it ended, and the first that
  // failed by itself is better than those that were stopped after it.
  const int blamed = BlamedRank(view);
  std::optional<int> spoken;
  for (int r = 0; r < static_cast<int>(view.ranks.size()); ++r) {
    const RankView& rank = view.ranks[r];
    if (!rank.finished_code || *rank.finished_code == kCodeOk) continue;
    if (!spoken || r == blamed) spoken = r;
  }
  if (spoken && (blamed < 0 || view.ranks[blamed].finished_code)) {
    return End(v1::STATE_FAILED, v1::REASON_WORKER_ERROR,
               absl::StrCat("rank ", *spoken, ": ",
                            view.ranks[*spoken].finished_message));
  }
  if (blamed >= 0) {
    return End(v1::STATE_FAILED, v1::REASON_WORKER_EXITED,
               ExitText(blamed, *view.ranks[blamed].exit), blamed);
  }
  if (StartTimedOut(view)) {
    return End(v1::STATE_FAILED, v1::REASON_START_TIMEOUT,
               absl::StrCat("no first step within resources.timeout, ",
                            absl::FormatDuration(view.start_timeout)),
               0);
  }
  if (!view.supervisor_error.empty()) {
    if (view.state == v1::STATE_STARTING) {
      return End(v1::STATE_FAILED, v1::REASON_LAUNCH_FAILED,
                 view.supervisor_error);
    }
    return End(v1::STATE_FAILED, v1::REASON_SUPERVISOR_LOST,
               view.supervisor_error);
  }
  for (int r = 0; r < static_cast<int>(view.ranks.size()); ++r) {
    if (!view.ranks[r].exit) continue;
    return End(v1::STATE_FAILED, v1::REASON_WORKER_EXITED,
               ExitText(r, *view.ranks[r].exit), r);
  }
  return End(v1::STATE_FAILED, v1::REASON_SUPERVISOR_LOST,
             "the supervisor of the attempt is gone and left no exit status");
}

// The ladder: ask, SIGTERM, SIGKILL. A job that has nothing to lose yet is not
// asked.
Judgement CancelStep(const AttemptView& view) {
  if (view.cancel_now) return Act(Judgement::Kind::kKill);
  const bool can_hear =
      std::any_of(view.ranks.begin(), view.ranks.end(),
                  [](const auto& r) { return r.started || r.stepped; });
  const absl::Duration grace = can_hear ? kCancelGrace : absl::ZeroDuration();
  if (view.since_cancel < grace) return Act(Judgement::Kind::kOrderCancel);
  if (view.since_cancel < grace + kTerminateGrace) {
    return Act(Judgement::Kind::kTerminate);
  }
  return Act(Judgement::Kind::kKill);
}

}  // namespace

std::optional<Judgement> Judge(const AttemptView& view) {
  const bool gone = view.supervisor == SupervisorState::kEnded ||
                    view.supervisor == SupervisorState::kLost;
  if (gone) {
    const bool draining =
        std::any_of(view.ranks.begin(), view.ranks.end(),
                    [](const auto& r) { return r.connected; });
    if (draining && view.since_end < kDrainGrace) return std::nullopt;
    return Verdict(view);
  }
  if (view.state == v1::STATE_CANCELLING) return CancelStep(view);
  if (StartTimedOut(view)) return Act(Judgement::Kind::kKill);
  if (AllFinished(view)) {
    if (view.since_finished >= kExitGrace) return Act(Judgement::Kind::kKill);
    return std::nullopt;
  }
  if (view.state == v1::STATE_STARTING &&
      (AllStarted(view) || AnyStepped(view))) {
    return Act(Judgement::Kind::kRun);
  }
  return std::nullopt;
}

}  // namespace ebb
