// Switches of policy: what is asked for is planned, stored and told. Their
// rules: policy_switch.h.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "monitoring/log.h"
#include "proto/convert.h"
#include "proto/effective_spec.h"
#include "proto/violations.h"
#include "server/coordinator.h"
#include "server/job_state.h"
#include "server/live_job.h"
#include "server/offload_directory.h"
#include "server/policy_switch.h"
#include "worker/program/plan.h"

namespace ebb {
namespace {

bool SameMemory(const v1::MemorySpec& a, const v1::MemorySpec& b) {
  return a.SerializeAsString() == b.SerializeAsString();
}

// All but the budgets.
bool SamePolicy(v1::MemorySpec a, v1::MemorySpec b) {
  for (v1::MemorySpec* memory : {&a, &b}) {
    memory->clear_budget();
    memory->clear_host_budget();
  }
  return SameMemory(a, b);
}

// Where the plan has what outlives steps and does not lie on the device.
std::vector<std::string> StateOffDevice(const v1::Plan& plan) {
  std::vector<std::string> places;
  for (const v1::Decision& decision : plan.decisions()) {
    if (!IsOnState(decision.value_name())) continue;
    places.push_back(
        absl::StrCat(decision.value_name(), " ", decision.offload_place()));
  }
  return places;
}

// What a switch cannot change while ranks train.
bool SameState(const v1::Plan& a, const v1::Plan& b) {
  if (StateOffDevice(a) != StateOffDevice(b)) return false;
  return std::equal(a.ranks().begin(), a.ranks().end(), b.ranks().begin(),
                    b.ranks().end(),
                    [](const v1::RankPlan& x, const v1::RankPlan& y) {
                      return x.state_arena_bytes() == y.state_arena_bytes();
                    });
}

// The request asks for no other memory section than what it starts from. True:
// for no other moment, either; the response tells of the switch that brings it,
// or that there is nothing to do.
bool FindSameSwitch(const v1::Job& job, const v1::SwitchPolicyRequest& request,
                    v1::SwitchPolicyResponse* response) {
  if (const int n = NewestSwitch(job, request.next_run()); n >= 0) {
    const v1::PolicySwitch& newest = job.pending_switches(n);
    if (newest.at_step() != request.at_step()) return false;
    *response->mutable_policy_switch() = newest;
    return true;
  }
  // What the next attempt would have may not be in force yet.
  if (request.next_run() && !job.pending_switches().empty()) return false;
  v1::PolicySwitch& none = *response->mutable_policy_switch();
  none.set_state(v1::PolicySwitch::STATE_DONE);
  none.set_cause(v1::PolicySwitch::CAUSE_USER_REQUEST);
  *none.mutable_before() = CostOf(job.plan());
  *none.mutable_after() = none.before();
  none.set_step(job.last_step() + 1);
  none.set_attempt(job.attempt());
  none.set_message("it has this policy and budget already");
  return true;
}

}  // namespace

absl::StatusOr<google::protobuf::RepeatedPtrField<v1::PlannedMemory>>
Coordinator::MakeLadder(const v1::JobSpec& effective, const JobSpec& spec,
                        const Plan& plan) {
  EBB_ASSIGN_OR_RETURN(const std::vector<PlanRung> rungs,
                       parts_.plan_ladder(spec, plan));
  google::protobuf::RepeatedPtrField<v1::PlannedMemory> ladder;
  for (const PlanRung& rung : rungs) {
    v1::PlannedMemory& planned = *ladder.Add();
    *planned.mutable_memory() = effective.memory();
    MemoryToMessage(rung.memory, planned.mutable_memory());
    *planned.mutable_plan() = PlanToMessage(rung.plan);
  }
  return ladder;
}

absl::StatusOr<v1::PendingPlan> Coordinator::PlanMemory(const v1::JobSpec& spec,
                                                        const Backend& backend,
                                                        bool may_climb_down,
                                                        std::string* note) {
  // All that the machine gives is in the spec of a job.
  EBB_ASSIGN_OR_RETURN(const v1::JobSpec effective,
                       EffectiveSpec(spec, MachineDefaults()));
  EBB_ASSIGN_OR_RETURN(const JobSpec job_spec, JobSpecFromMessage(effective));
  EBB_ASSIGN_OR_RETURN(const Plan plan, parts_.plan_job(job_spec, backend));
  v1::PendingPlan pending;
  EBB_ASSIGN_OR_RETURN(*pending.mutable_ladder(),
                       MakeLadder(effective, job_spec, plan));
  if (plan.fits) {
    *pending.mutable_planned()->mutable_memory() = effective.memory();
    *pending.mutable_planned()->mutable_plan() = PlanToMessage(plan);
    return pending;
  }
  auto& ladder = *pending.mutable_ladder();
  const auto fits = std::find_if(
      ladder.begin(), ladder.end(),
      [](const v1::PlannedMemory& rung) { return rung.plan().fits(); });
  if (!may_climb_down || fits == ladder.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the job would not fit: ", plan.shortfall));
  }
  *note = absl::StrCat(PolicyName(plan.policy), " does not fit the budget, ",
                       fits->plan().policy(), " does");
  *pending.mutable_planned() = *fits;
  ladder.erase(ladder.begin(), fits + 1);
  return pending;
}

absl::StatusOr<Coordinator::LiveJob*> Coordinator::FindToSwitch(
    const v1::SwitchPolicyRequest& request) {
  const auto found = live_.find(request.id());
  if (found == live_.end()) {
    v1::GetJobRequest get;
    get.set_id(request.id());
    EBB_ASSIGN_OR_RETURN(const v1::Job job, GetJob(get));
    return absl::FailedPreconditionError(absl::StrCat(
        "the job has ended: ", StateLabel(job.state()), ": job ", job.id()));
  }
  LiveJob& live = *found->second;
  const v1::Job& job = live.job;
  if (job.state() == v1::STATE_CANCELLING) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job is being cancelled: job ", job.id()));
  }
  const int64_t step = request.at_step();
  if (request.next_run() && step != 0) {
    return FieldError("at_step", absl::StrCat(step),
                      "must not stand beside next_run", "leave out one");
  }
  if (step < 0 || step > job.spec().steps()) {
    return FieldError("at_step", absl::StrCat(step),
                      "must be a step of the job",
                      absl::StrCat("use 1 to ", job.spec().steps(),
                                   ", or 0 for the next one"));
  }
  if (step > 0 && step <= job.last_step()) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, " has run: the job is at step ",
                     job.last_step(), ": job ", job.id()));
  }
  return &live;
}

absl::Status Coordinator::CheckDisk(const v1::Job& job,
                                    const v1::PlannedMemory& wanted) const {
  const auto disk_bytes = [](const v1::Plan& plan) {
    int64_t bytes = 0;
    for (const v1::RankPlan& rank : plan.ranks()) bytes += rank.disk_bytes();
    return bytes;
  };
  // The files of a job that runs grow where they are.
  const bool stay =
      HasAttempt(job.state()) &&
      wanted.memory().offload_dir() == job.spec().memory().offload_dir();
  return CheckOffloadRoom(
      wanted.memory(), options_.state_directory,
      disk_bytes(wanted.plan()) - (stay ? disk_bytes(job.plan()) : 0));
}

absl::StatusOr<v1::SwitchPolicyResponse> Coordinator::SwitchPolicy(
    const v1::SwitchPolicyRequest& request) {
  // Planning is done without the lock: if another switch came meanwhile, this
  // one is asked of what that one made.
  constexpr int kMaxRounds = 10;
  for (int round = 0; round < kMaxRounds; ++round) {
    v1::Job job;
    v1::JobSpec wanted_spec;
    v1::MemorySpec base;
    {
      absl::MutexLock lock(&mutex_);
      EBB_ASSIGN_OR_RETURN(LiveJob* const live, FindToSwitch(request));
      base = NewestMemory(live->job, live->plans, request.next_run());
      const v1::MemorySpec asked = AskedMemory(base, request.memory());
      if (SameMemory(asked, base)) {
        v1::SwitchPolicyResponse response;
        if (FindSameSwitch(live->job, request, &response)) {
          response.set_sequence(live->last_event);
          return response;
        }
      }
      if (live->job.pending_switches_size() >= kMaxPendingSwitches) {
        return absl::UnavailableError(absl::StrCat(
            live->job.pending_switches_size(),
            " switches of this job wait already: try again later"));
      }
      job = live->job;
      wanted_spec = job.spec();
      *wanted_spec.mutable_memory() = asked;
    }
    std::string note;
    EBB_ASSIGN_OR_RETURN(
        v1::PendingPlan wanted,
        PlanMemory(wanted_spec, BackendFromMessage(job.plan().backend()),
                   SamePolicy(wanted_spec.memory(), base), &note));
    EBB_RETURN_IF_ERROR(CheckDisk(job, wanted.planned()));

    absl::MutexLock lock(&mutex_);
    EBB_ASSIGN_OR_RETURN(LiveJob* const live, FindToSwitch(request));
    if (!SameMemory(NewestMemory(live->job, live->plans, request.next_run()),
                    base)) {
      continue;
    }
    return StoreSwitch(*live, request, std::move(wanted), note);
  }
  return absl::AbortedError(
      "other switches of this job came first again and again");
}

absl::StatusOr<v1::SwitchPolicyResponse> Coordinator::StoreSwitch(
    LiveJob& live, const v1::SwitchPolicyRequest& request,
    v1::PendingPlan wanted, const std::string& note) {
  if (HasAttempt(live.job.state()) && !request.next_run() &&
      !SameState(wanted.planned().plan(), live.job.plan())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", live.job.id(),
        " trains with memory.offload_optimizer and "
        "memory.offload_parameters as its attempt began, and the new plan has "
        "others: set them as they are, or leave the change to the next attempt "
        "(--next-run)"));
  }
  v1::Job job = live.job;
  v1::JobPlans plans = live.plans;
  const SwitchRecords records = {&job, &plans};
  std::vector<v1::PolicySwitch> news;
  if (request.next_run()) news = SupersedeForNextRun(records);
  news.push_back(AddSwitch(std::move(wanted), request.at_step(),
                           request.next_run(), note, records));
  const int64_t number = news.back().number();
  if (!HasAttempt(job.state())) {
    std::vector<v1::PolicySwitch> ended =
        TakeDueSwitches(job.last_step() + 1, records);
    if (!ended.empty() && ended.back().number() == number) news.pop_back();
    news.insert(news.end(), ended.begin(), ended.end());
  }
  Change change;
  const int64_t last_event = live.last_event;
  AddSwitchEvents(live, news, &change);
  change.replanned_jobs.push_back(job);
  change.plans.push_back({job.id(), plans});
  if (absl::Status stored = parts_.store->Apply(change); !stored.ok()) {
    live.last_event = last_event;
    return Annotate(stored, absl::StrCat("job ", job.id()));
  }
  live.job = std::move(job);
  live.plans = std::move(plans);
  for (const LiveRank& rank : live.ranks) SendSwitches(live, rank);
  Changed();
  Wake();
  v1::SwitchPolicyResponse response;
  *response.mutable_policy_switch() = news.back();
  response.set_sequence(live.last_event);
  return response;
}

void Coordinator::AddSwitchEvents(LiveJob& live,
                                  const std::vector<v1::PolicySwitch>& switches,
                                  Change* change) {
  for (const v1::PolicySwitch& policy_switch : switches) {
    v1::JobEvent event;
    *event.mutable_policy_switch() = policy_switch;
    AddEvent(live, std::move(event), change);
    EBB_LOG(INFO) << "job " << live.job.id() << ": "
                  << DescribeSwitch(policy_switch);
  }
}

}  // namespace ebb
