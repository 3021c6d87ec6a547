// The coordinator's judgement of one attempt, as a pure function: what was
// observed and how much time has passed in, decisions out. It reads no clock,
// file or store; the coordinator gathers the view and carries the decisions
// out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/job_service.pb.h"

namespace ebb {

// How the process of a rank ended.
struct RankExit {
  int exit_code = 0;  // -1: by a signal
  int signal = 0;     // 0: none
  // The supervisor had signalled it before it ended.
  bool stopped = false;
};

enum class SupervisorState : uint8_t {
  kAwaited,  // launched, has not written its first file
  kAlive,
  kEnded,  // wrote its last file
  kLost,   // gone without
};

// What is known of one rank.
struct RankView {
  // A stream is open: reports may still be on their way.
  bool connected = false;
  bool started = false;
  bool stepped = false;
  // Of its message `finished`, once there.
  std::optional<int> finished_code;
  std::string finished_message;
  std::optional<RankExit> exit;
};

struct AttemptView {
  v1::State state = v1::STATE_STARTING;
  SupervisorState supervisor = SupervisorState::kAwaited;
  // Why the attempt could not be launched or its ranks not be started or
  // watched; empty: nothing known.
  std::string supervisor_error;
  // First rank that failed by itself; -1: none.
  int failed_rank = -1;
  std::vector<RankView> ranks;
  // resources.timeout.
  absl::Duration start_timeout = absl::InfiniteDuration();
  // Since the launch, or since this coordinator found the attempt.
  absl::Duration since_launch;
  // Since kEnded or kLost was first seen.
  absl::Duration since_end;
  // Since every rank had said `finished`.
  absl::Duration since_finished;
  absl::Duration since_cancel;
  // Kill the processes, do not wait for a step boundary.
  bool cancel_now = false;
};

struct Judgement {
  enum class Kind : uint8_t {
    kRun,          // STARTING -> RUNNING
    kOrderCancel,  // tell the ranks to stop at the next step boundary
    kTerminate,    // SIGTERM to the ranks
    kKill,         // SIGKILL to the ranks
    kEnd,          // to a final state, all processes being gone
  };
  Kind kind = Kind::kRun;
  // kEnd alone.
  v1::State state = v1::STATE_UNSPECIFIED;
  v1::Reason reason = v1::REASON_UNSPECIFIED;
  std::string message;
  // Rank whose last log lines explain the end; -1: none.
  int rank = -1;

  bool operator==(const Judgement&) const = default;
};

// From a cancel order to SIGTERM.
constexpr absl::Duration kCancelGrace = absl::Seconds(10);
// From SIGTERM to SIGKILL: a job is gone 5 s after its grace.
constexpr absl::Duration kTerminateGrace = absl::Seconds(3);
// From the last `finished` to SIGKILL for a process that does not exit.
constexpr absl::Duration kExitGrace = absl::Seconds(30);
// How long reports of a dead rank may take to arrive.
constexpr absl::Duration kDrainGrace = absl::Seconds(5);

// At most one decision, the one to carry out now; asked again at every look, it
// repeats itself until the view changes. The coordinator sends each order and
// signal once.
std::optional<Judgement> Judge(const AttemptView& view);

}  // namespace ebb
