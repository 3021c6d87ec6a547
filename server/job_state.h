// The states of a job and every way from one to another: a table with the
// reasons that each way may have. server/README.md shows it as a picture.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "proto/job_service.pb.h"

namespace ebb {

// One allowed change. STATE_UNSPECIFIED stands for "the job does not exist
// yet".
struct Transition {
  v1::State from;
  v1::State to;
  v1::Reason reason;
};

// All of them; a change that is not here is a mistake of the coordinator.
std::span<const Transition> Transitions();

// Errors: INTERNAL, naming states and reason, for a change not in the table.
absl::Status CheckTransition(v1::State from, v1::State to, v1::Reason reason);

// SUCCEEDED, FAILED, CANCELLED: a job stays there for ever.
bool IsFinal(v1::State state);

// STARTING, RUNNING, CANCELLING: an attempt lives.
bool HasAttempt(v1::State state);

// "queued", "running", ...: the label values of metrics. "unspecified" for
// STATE_UNSPECIFIED and for numbers outside the enum.
const char* StateLabel(v1::State state);

// "waiting", "worker_exited", ...; as StateLabel.
const char* ReasonLabel(v1::Reason reason);

// The seven real states, in the order of a job's life.
std::span<const v1::State> AllStates();

}  // namespace ebb
