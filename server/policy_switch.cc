// See policy_switch.h.
#include "server/policy_switch.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace ebb {
namespace {

void EndSwitch(v1::PolicySwitch ended, v1::PolicySwitch::State state,
               SwitchRecords records, std::vector<v1::PolicySwitch>* all) {
  ended.set_state(state);
  ended.set_attempt(records.job->attempt());
  *records.job->mutable_last_switch() = ended;
  all->push_back(std::move(ended));
}

// Takes all waiting switches up to `number` out that wait for the same as that
// one. They are over, superseded, but for the one of this number, which is
// returned with its plan.
v1::PendingPlan TakeOut(int64_t number, SwitchRecords records,
                        v1::PolicySwitch* taken,
                        std::vector<v1::PolicySwitch>* ended) {
  auto& waiting = *records.job->mutable_pending_switches();
  auto& plans = *records.plans->mutable_pending();
  const auto newest = std::find_if(
      waiting.begin(), waiting.end(),
      [&](const v1::PolicySwitch& one) { return one.number() == number; });
  EBB_CHECK(newest != waiting.end());
  const bool next_run = newest->next_run();
  v1::PendingPlan plan;
  for (int n = 0; n < waiting.size() && waiting[n].number() <= number;) {
    if (waiting[n].next_run() != next_run) {
      ++n;
      continue;
    }
    EBB_CHECK(waiting[n].number() == plans[n].number());
    if (waiting[n].number() == number) {
      *taken = std::move(waiting[n]);
      plan = std::move(plans[n]);
    } else {
      EndSwitch(std::move(waiting[n]), v1::PolicySwitch::STATE_SUPERSEDED,
                records, ended);
    }
    waiting.erase(waiting.begin() + n);
    plans.erase(plans.begin() + n);
  }
  return plan;
}

void PutInForce(v1::PlannedMemory planned,
                google::protobuf::RepeatedPtrField<v1::PlannedMemory> ladder,
                SwitchRecords records) {
  records.job->mutable_spec()->mutable_memory()->Swap(planned.mutable_memory());
  records.job->mutable_plan()->Swap(planned.mutable_plan());
  records.plans->mutable_ladder()->Swap(&ladder);
}

absl::Status CheckRung(const v1::Switched& answer, int ladder_size) {
  if (answer.rung() >= 1 && answer.rung() <= ladder_size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the rank took plan ", answer.rung(), " of a ladder of ", ladder_size));
}

// The rank has a plan of the ladder: one step down from the plan in force.
absl::Status TakeRung(const v1::Switched& answer, SwitchRecords records,
                      std::vector<v1::PolicySwitch>* ended) {
  auto& ladder = *records.plans->mutable_ladder();
  EBB_RETURN_IF_ERROR(CheckRung(answer, ladder.size()));
  v1::PolicySwitch down;
  down.set_number(records.plans->last_switch() + 1);
  records.plans->set_last_switch(down.number());
  down.set_cause(v1::PolicySwitch::CAUSE_OUT_OF_MEMORY);
  *down.mutable_before() = CostOf(records.job->plan());
  v1::PlannedMemory planned = std::move(ladder[answer.rung() - 1]);
  *down.mutable_after() = CostOf(planned.plan());
  ladder.erase(ladder.begin(), ladder.begin() + answer.rung());
  PutInForce(std::move(planned), std::move(ladder), records);
  down.set_step(answer.step());
  down.set_duration_seconds(answer.duration_seconds());
  down.set_step_arena_moved(answer.step_arena_moved());
  down.set_message(answer.message());
  records.job->set_num_switches(records.job->num_switches() + 1);
  EndSwitch(std::move(down), v1::PolicySwitch::STATE_DONE, records, ended);
  return absl::OkStatus();
}

std::string CostText(const v1::PolicyCost& cost) {
  return absl::StrCat(
      cost.policy(),
      cost.group() > 1 ? absl::StrCat(", group ", cost.group()) : "", " (peak ",
      cost.peak_bytes(), " B of a budget of ", cost.budget_bytes(), ")");
}

}  // namespace

v1::MemorySpec AskedMemory(const v1::MemorySpec& base,
                           const v1::MemorySpec& asked) {
  v1::MemorySpec merged = base;
  if (asked.policy() != v1::POLICY_UNSPECIFIED &&
      asked.policy() != base.policy()) {
    merged.set_group(1);
    merged.clear_recompute();
  }
  // A list is one value.
  if (!asked.recompute().empty()) merged.clear_recompute();
  // Values without a format, or that are named anew.
  if (asked.encode().format() == v1::ENCODE_FORMAT_NONE ||
      !asked.encode().values().empty()) {
    merged.mutable_encode()->clear_values();
  }
  v1::MemorySpec set = asked;
  if (set.policy() == v1::POLICY_UNSPECIFIED) set.clear_policy();
  merged.MergeFrom(set);
  if (!asked.has_offload_dir() && merged.offload() != v1::OFFLOAD_DISK &&
      merged.offload_optimizer() != v1::OFFLOAD_DISK) {
    merged.set_offload_dir("");
  }
  return merged;
}

int NewestSwitch(const v1::Job& job, bool next_run) {
  int n = job.pending_switches_size() - 1;
  while (n >= 0 && job.pending_switches(n).next_run() != next_run) --n;
  return n;
}

const v1::MemorySpec& NewestMemory(const v1::Job& job,
                                   const v1::JobPlans& plans, bool next_run) {
  int newest = NewestSwitch(job, next_run);
  if (newest < 0 && next_run) newest = NewestSwitch(job, false);
  return newest < 0 ? job.spec().memory()
                    : plans.pending(newest).planned().memory();
}

v1::PolicyCost CostOf(const v1::Plan& plan) {
  v1::PolicyCost cost;
  cost.set_policy(plan.policy());
  cost.set_group(plan.group());
  cost.set_budget_bytes(plan.budget_bytes());
  for (const v1::RankPlan& rank : plan.ranks()) {
    cost.set_peak_bytes(std::max(cost.peak_bytes(), rank.peak_bytes()));
  }
  cost.set_recompute_flops(plan.recompute_flops());
  return cost;
}

v1::Plan PlanForRank(const v1::Plan& plan) {
  v1::Plan copy = plan;
  copy.clear_pareto();
  copy.clear_notes();
  for (v1::Decision& decision : *copy.mutable_decisions()) {
    decision.clear_reason();
  }
  return copy;
}

v1::PolicySwitch AddSwitch(v1::PendingPlan wanted, int64_t at_step,
                           bool next_run, const std::string& message,
                           SwitchRecords records) {
  const int64_t number = records.plans->last_switch() + 1;
  records.plans->set_last_switch(number);
  wanted.set_number(number);
  v1::PolicySwitch& added = *records.job->add_pending_switches();
  added.set_number(number);
  added.set_state(v1::PolicySwitch::STATE_PENDING);
  added.set_cause(v1::PolicySwitch::CAUSE_USER_REQUEST);
  *added.mutable_before() = CostOf(records.job->plan());
  *added.mutable_after() = CostOf(wanted.planned().plan());
  added.set_at_step(at_step);
  added.set_next_run(next_run);
  added.set_message(message);
  *records.plans->add_pending() = std::move(wanted);
  return added;
}

std::vector<v1::PolicySwitch> SupersedeForNextRun(SwitchRecords records) {
  auto& waiting = *records.job->mutable_pending_switches();
  std::vector<v1::PolicySwitch> ended;
  for (int n = 0; n < waiting.size();) {
    if (!waiting[n].next_run()) {
      ++n;
      continue;
    }
    ended.push_back(std::move(waiting[n]));
    ended.back().set_state(v1::PolicySwitch::STATE_SUPERSEDED);
    ended.back().set_attempt(records.job->attempt());
    waiting.erase(waiting.begin() + n);
    records.plans->mutable_pending()->erase(
        records.plans->mutable_pending()->begin() + n);
  }
  return ended;
}

std::vector<v1::PolicySwitch> TakeDueSwitches(int64_t first_step,
                                              SwitchRecords records) {
  std::vector<v1::PolicySwitch> ended;
  int64_t due = 0, next_run = 0;
  for (const v1::PolicySwitch& waiting : records.job->pending_switches()) {
    if (waiting.next_run()) {
      next_run = waiting.number();
    } else if (waiting.at_step() <= first_step) {
      due = waiting.number();
    }
  }
  for (const int64_t number : {due, next_run}) {
    if (number == 0) continue;
    v1::PolicySwitch taken;
    v1::PendingPlan plan = TakeOut(number, records, &taken, &ended);
    *taken.mutable_before() = CostOf(records.job->plan());
    PutInForce(std::move(*plan.mutable_planned()),
               std::move(*plan.mutable_ladder()), records);
    taken.set_step(first_step);
    EndSwitch(std::move(taken), v1::PolicySwitch::STATE_DONE, records, &ended);
  }
  // Those of ranks that are gone.
  for (v1::PendingPlan& plan : *records.plans->mutable_pending()) {
    plan.clear_answers();
  }
  return ended;
}

absl::StatusOr<std::vector<v1::PolicySwitch>> TakeAnswer(
    const v1::Switched& answer, int rank, int num_ranks,
    SwitchRecords records) {
  std::vector<v1::PolicySwitch> ended;
  if (answer.number() == 0) {
    EBB_RETURN_IF_ERROR(TakeRung(answer, records, &ended));
    return ended;
  }
  auto& plans = *records.plans->mutable_pending();
  const auto found = std::find_if(plans.begin(), plans.end(),
                                  [&](const v1::PendingPlan& plan) {
                                    return plan.number() == answer.number();
                                  });
  if (found == plans.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("switch ", answer.number(), " does not wait"));
  }
  if (answer.rung() != 0) {
    // Before anything is taken out: what is stored then is told, too.
    EBB_RETURN_IF_ERROR(CheckRung(
        answer, (answer.code() == 0 ? found->ladder() : records.plans->ladder())
                    .size()));
  }
  (*found->mutable_answers())[rank] = answer;
  if (found->answers_size() < num_ranks) return ended;

  v1::PolicySwitch taken;
  v1::PendingPlan plan = TakeOut(answer.number(), records, &taken, &ended);
  *taken.mutable_before() = CostOf(records.job->plan());
  bool refused = false;
  for (const auto& [number, of_rank] : plan.answers()) {
    taken.set_step(std::max(taken.step(), of_rank.step()));
    taken.set_duration_seconds(
        std::max(taken.duration_seconds(), of_rank.duration_seconds()));
    taken.set_step_arena_moved(taken.step_arena_moved() ||
                               of_rank.step_arena_moved());
    if (of_rank.code() == 0) continue;
    refused = true;
    taken.set_code(of_rank.code());
    taken.set_message(absl::StrCat(of_rank.message(), ": rank ", number));
  }
  if (refused) {
    taken.clear_step();
    EndSwitch(std::move(taken), v1::PolicySwitch::STATE_REFUSED, records,
              &ended);
  } else {
    PutInForce(std::move(*plan.mutable_planned()),
               std::move(*plan.mutable_ladder()), records);
    records.job->set_num_switches(records.job->num_switches() + 1);
    EndSwitch(std::move(taken), v1::PolicySwitch::STATE_DONE, records, &ended);
  }
  if (answer.rung() > 0) {
    EBB_RETURN_IF_ERROR(TakeRung(answer, records, &ended));
  }
  return ended;
}

void DropTornSwitches(SwitchRecords records) {
  auto& waiting = *records.job->mutable_pending_switches();
  auto& plans = *records.plans->mutable_pending();
  std::set<int64_t> known;
  std::set<int64_t> planned;
  for (const v1::PolicySwitch& of_job : waiting) known.insert(of_job.number());
  for (const v1::PendingPlan& plan : plans) planned.insert(plan.number());
  waiting.erase(std::remove_if(waiting.begin(), waiting.end(),
                               [&](const v1::PolicySwitch& of_job) {
                                 return planned.count(of_job.number()) == 0;
                               }),
                waiting.end());
  plans.erase(std::remove_if(plans.begin(), plans.end(),
                             [&](const v1::PendingPlan& plan) {
                               return known.count(plan.number()) == 0;
                             }),
              plans.end());
}

std::string DescribeSwitch(const v1::PolicySwitch& policy_switch) {
  std::string text = absl::StrCat("switch ", policy_switch.number(), " from ",
                                  CostText(policy_switch.before()), " to ",
                                  CostText(policy_switch.after()), ": ");
  switch (policy_switch.state()) {
    case v1::PolicySwitch::STATE_PENDING:
      absl::StrAppend(&text, "waits");
      break;
    case v1::PolicySwitch::STATE_DONE:
      absl::StrAppend(&text, "in force from step ", policy_switch.step());
      break;
    case v1::PolicySwitch::STATE_REFUSED:
      absl::StrAppend(&text, "not taken");
      break;
    default:
      absl::StrAppend(&text, "a later one came first");
  }
  if (!policy_switch.message().empty()) {
    absl::StrAppend(&text, ": ", policy_switch.message());
  }
  return text;
}

}  // namespace ebb
