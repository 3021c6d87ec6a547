// The table of job states.
#include "server/job_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ebb {
namespace {

constexpr Transition kTransitions[] = {
    // Accepted.
    {v1::STATE_UNSPECIFIED, v1::STATE_QUEUED, v1::REASON_WAITING},
    // Its turn: the attempt is stored, then launched.
    {v1::STATE_QUEUED, v1::STATE_STARTING, v1::REASON_UNSPECIFIED},
    {v1::STATE_QUEUED, v1::STATE_CANCELLED, v1::REASON_USER_REQUEST},
    // The attempt was stored but its supervisor never lived (the coordinator
    // died in between): a new attempt.
    {v1::STATE_STARTING, v1::STATE_STARTING, v1::REASON_UNSPECIFIED},
    // All ranks have said Started, or one has trained a step.
    {v1::STATE_STARTING, v1::STATE_RUNNING, v1::REASON_UNSPECIFIED},
    // Ran while no coordinator was there.
    {v1::STATE_STARTING, v1::STATE_SUCCEEDED, v1::REASON_COMPLETED},
    {v1::STATE_STARTING, v1::STATE_CANCELLING, v1::REASON_USER_REQUEST},
    {v1::STATE_STARTING, v1::STATE_FAILED, v1::REASON_WORKER_ERROR},
    {v1::STATE_STARTING, v1::STATE_FAILED, v1::REASON_WORKER_EXITED},
    {v1::STATE_STARTING, v1::STATE_FAILED, v1::REASON_LAUNCH_FAILED},
    {v1::STATE_STARTING, v1::STATE_FAILED, v1::REASON_START_TIMEOUT},
    {v1::STATE_STARTING, v1::STATE_FAILED, v1::REASON_SUPERVISOR_LOST},
    {v1::STATE_RUNNING, v1::STATE_SUCCEEDED, v1::REASON_COMPLETED},
    {v1::STATE_RUNNING, v1::STATE_CANCELLING, v1::REASON_USER_REQUEST},
    {v1::STATE_RUNNING, v1::STATE_FAILED, v1::REASON_WORKER_ERROR},
    {v1::STATE_RUNNING, v1::STATE_FAILED, v1::REASON_WORKER_EXITED},
    // Arenas were ready but the first step never came.
    {v1::STATE_RUNNING, v1::STATE_FAILED, v1::REASON_START_TIMEOUT},
    {v1::STATE_RUNNING, v1::STATE_FAILED, v1::REASON_SUPERVISOR_LOST},
    {v1::STATE_CANCELLING, v1::STATE_CANCELLED, v1::REASON_USER_REQUEST},
    // Done before the order reached it.
    {v1::STATE_CANCELLING, v1::STATE_SUCCEEDED, v1::REASON_COMPLETED},
};

constexpr v1::State kStates[] = {
    v1::STATE_QUEUED,     v1::STATE_STARTING,  v1::STATE_RUNNING,
    v1::STATE_CANCELLING, v1::STATE_SUCCEEDED, v1::STATE_FAILED,
    v1::STATE_CANCELLED,
};

}  // namespace

std::span<const Transition> Transitions() { return kTransitions; }

absl::Status CheckTransition(v1::State from, v1::State to, v1::Reason reason) {
  const bool allowed =
      std::any_of(std::begin(kTransitions), std::end(kTransitions),
                  [&](const Transition& transition) {
                    return transition.from == from && transition.to == to &&
                           transition.reason == reason;
                  });
  if (allowed) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("no such change of state: ", StateLabel(from), " to ",
                   StateLabel(to), " with reason ", ReasonLabel(reason)));
}

bool IsFinal(v1::State state) {
  return state == v1::STATE_SUCCEEDED || state == v1::STATE_FAILED ||
         state == v1::STATE_CANCELLED;
}

bool HasAttempt(v1::State state) {
  return state == v1::STATE_STARTING || state == v1::STATE_RUNNING ||
         state == v1::STATE_CANCELLING;
}

const char* StateLabel(v1::State state) {
  switch (state) {
    case v1::STATE_QUEUED:
      return "queued";
    case v1::STATE_STARTING:
      return "starting";
    case v1::STATE_RUNNING:
      return "running";
    case v1::STATE_CANCELLING:
      return "cancelling";
    case v1::STATE_SUCCEEDED:
      return "succeeded";
    case v1::STATE_FAILED:
      return "failed";
    case v1::STATE_CANCELLED:
      return "cancelled";
    default:
      return "unspecified";
  }
}

const char* ReasonLabel(v1::Reason reason) {
  switch (reason) {
    case v1::REASON_WAITING:
      return "waiting";
    case v1::REASON_USER_REQUEST:
      return "user_request";
    case v1::REASON_COMPLETED:
      return "completed";
    case v1::REASON_WORKER_ERROR:
      return "worker_error";
    case v1::REASON_WORKER_EXITED:
      return "worker_exited";
    case v1::REASON_LAUNCH_FAILED:
      return "launch_failed";
    case v1::REASON_START_TIMEOUT:
      return "start_timeout";
    case v1::REASON_SUPERVISOR_LOST:
      return "supervisor_lost";
    default:
      return "unspecified";
  }
}

std::span<const v1::State> AllStates() { return kStates; }

}  // namespace ebb
