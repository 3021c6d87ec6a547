// Lowering beside the training loop.
#include "worker/runtime/prepared_plan.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "kernels/status.h"
#include "worker/runtime/plan_check.h"

namespace ebb {

absl::StatusOr<std::unique_ptr<PreparedPlan>> PreparePlan(
    const JobSpec& spec, const Plan& plan, const Backend& backend,
    int64_t evaluation_sequences) {
  if (plan.ranks.size() != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("the plan is for ", plan.ranks.size(), " ranks: want 1"));
  }
  auto prepared = std::make_unique<PreparedPlan>();
  prepared->plan = plan;
  EBB_ASSIGN_OR_RETURN(prepared->programs,
                       LowerJob(spec, plan, backend, evaluation_sequences));
  prepared->differences =
      ComparePlan(plan.ranks[0], PredictRank(prepared->programs, plan.backend));
  return prepared;
}

SwitchQueue::SwitchQueue(Prepare prepare) : prepare_(std::move(prepare)) {}

SwitchQueue::~SwitchQueue() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void SwitchQueue::Add(PlanSwitch order) {
  if (order.number <= newest_) return;
  newest_ = order.number;
  {
    absl::MutexLock lock(&mutex_);
    waiting_.push_back(
        {std::move(order), false, absl::UnavailableError("not prepared yet")});
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
}

std::optional<SwitchQueue::Due> SwitchQueue::TakeDue(int64_t step) {
  absl::MutexLock lock(&mutex_);
  // All ranks come here before this step: none goes on alone.
  const auto all_in_time = [this,
                            step]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::none_of(
        waiting_.begin(), waiting_.end(), [step](const Waiting& waiting) {
          return waiting.order.at_step == step && !waiting.is_prepared;
        });
  };
  mutex_.Await(absl::Condition(&all_in_time));
  const auto newest = std::find_if(
      waiting_.rbegin(), waiting_.rend(), [step](const Waiting& waiting) {
        return waiting.order.at_step <= step && waiting.is_prepared;
      });
  if (newest == waiting_.rend()) return std::nullopt;
  Due due = {std::move(newest->order), std::move(newest->prepared)};
  waiting_.erase(waiting_.begin(), newest.base());
  return due;
}

void SwitchQueue::Run() {
  pthread_setname_np(pthread_self(), "ebb-prepare");
  absl::MutexLock lock(&mutex_);
  while (true) {
    const auto find = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return std::find_if(
          waiting_.begin(), waiting_.end(),
          [](const Waiting& waiting) { return !waiting.is_prepared; });
    };
    const auto ready = [this, &find]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || find() != waiting_.end();
    };
    mutex_.Await(absl::Condition(&ready));
    if (stopping_) return;
    const auto next = find();
    const int64_t number = next->order.number;
    const absl::StatusOr<Plan> plan = next->order.plan;
    mutex_.Unlock();
    absl::StatusOr<std::unique_ptr<PreparedPlan>> prepared =
        plan.ok() ? prepare_(*plan) : plan.status();
    mutex_.Lock();
    // It may have been forgotten meanwhile.
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [number](const Waiting& waiting) {
                                      return waiting.order.number == number;
                                    });
    if (found == waiting_.end()) continue;
    found->prepared = std::move(prepared);
    found->is_prepared = true;
  }
}

}  // namespace ebb
