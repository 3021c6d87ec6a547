// The rules of a change of policy, on the records of a job: what a request asks
// for, what waits, and what comes into force when. Pure: the coordinator stores
// what these functions make of copies.
//
// A switch waits (v1::Job.pending_switches, with its plan in v1::JobPlans.
// pending) until its fate is known: a rank has answered, or an attempt begins.
// job.spec.memory and job.plan are always what is in force. What waits for the
// next attempt and what waits for the ranks that train are two lines: a switch
// starts from the newest of its own, and supersedes older ones of its own only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job_plans.pb.h"
#include "proto/job_service.pb.h"
#include "proto/worker_service.pb.h"

namespace ebb {

// Switches of a job that wait at the same time; each holds a plan.
constexpr int kMaxPendingSwitches = 16;

// `base` with the fields of `asked` that are set. Another policy than the
// base's does not take over its group and its list to recompute, and where
// nothing goes to disk any more its directory is not taken over.
v1::MemorySpec AskedMemory(const v1::MemorySpec& base,
                           const v1::MemorySpec& asked);

// Index of the newest switch that waits for the next attempt, or of those that
// wait for the ranks that train; -1: none waits.
int NewestSwitch(const v1::Job& job, bool next_run);

// The memory section that a new switch starts from: what the ranks that train
// will have, or the next attempt.
const v1::MemorySpec& NewestMemory(const v1::Job& job,
                                   const v1::JobPlans& plans, bool next_run);

v1::PolicyCost CostOf(const v1::Plan& plan);

// A copy that one rank can read: without what is for people.
v1::Plan PlanForRank(const v1::Plan& plan);

// What one decision about switches changes.
struct SwitchRecords {
  v1::Job* job;
  v1::JobPlans* plans;
};

// Adds a switch that waits, with the next number. `wanted` has no number.
v1::PolicySwitch AddSwitch(v1::PendingPlan wanted, int64_t at_step,
                           bool next_run, const std::string& message,
                           SwitchRecords records);

// Ends those that wait for the next attempt, which another one takes over.
std::vector<v1::PolicySwitch> SupersedeForNextRun(SwitchRecords records);

// No rank trains: takes into force what is due when step `first_step` begins a
// run, and then what waited for the next attempt; of each the newest, older
// ones end. Returns all whose fate is known now, in this order.
std::vector<v1::PolicySwitch> TakeDueSwitches(int64_t first_step,
                                              SwitchRecords records);

// One rank's report. When all ranks have answered the switch, it and older ones
// that wait for ranks end. Returns those whose fate is known now, by number.
// Errors: INVALID_ARGUMENT for a plan that the rank cannot have.
absl::StatusOr<std::vector<v1::PolicySwitch>> TakeAnswer(
    const v1::Switched& answer, int rank, int num_ranks, SwitchRecords records);

// Drops switches of which one of the two records is lost.
void DropTornSwitches(SwitchRecords records);

// "policy none, budget 2147483648, to full" and what came of it, for the log.
std::string DescribeSwitch(const v1::PolicySwitch& policy_switch);

}  // namespace ebb
