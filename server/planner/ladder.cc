// Rungs are what PlanJob makes of a smaller wish.
#include "server/planner/ladder.h"

#include <algorithm>
#include <utility>

#include "kernels/status.h"
#include "server/planner/plan_job.h"

namespace ebb {
namespace {

// Each is a search of its own, while somebody waits for the submit.
constexpr size_t kMaxAutoRungs = 3;

int64_t PeakBytes(const Plan& plan) {
  int64_t peak = 0;
  for (const RankPlan& rank : plan.ranks) {
    peak = std::max(peak, rank.peak_bytes);
  }
  return peak;
}

// Policies in the ladder of a named one.
std::vector<MemorySpec> NamedPolicies(const JobSpec& spec) {
  std::vector<MemorySpec> all;
  for (const Policy policy :
       {Policy::kSelective, Policy::kCheap, Policy::kFull, Policy::kSqrt}) {
    MemorySpec& memory = all.emplace_back(spec.memory);
    memory.policy = policy;
    memory.group = 1;
    memory.recompute.clear();
  }
  return all;
}

// Budgets for which `auto` chooses less than it did, evenly over the candidates
// that it has, the smallest among them.
std::vector<MemorySpec> SmallerBudgets(const JobSpec& spec, const Plan& plan) {
  std::vector<int64_t> peaks;
  for (const PlanCandidate& candidate : plan.pareto) {
    if (candidate.peak_bytes < PeakBytes(plan)) {
      peaks.push_back(candidate.peak_bytes);
    }
  }
  std::sort(peaks.begin(), peaks.end());
  std::vector<MemorySpec> all;
  const size_t count = std::min<size_t>(peaks.size(), kMaxAutoRungs);
  for (size_t n = 0; n < count; ++n) {
    all.emplace_back(spec.memory).budget_bytes =
        peaks[n * peaks.size() / count];
  }
  return all;
}

}  // namespace

absl::StatusOr<std::vector<PlanRung>> PlanLadder(const JobSpec& spec,
                                                 const Plan& plan,
                                                 const CostProfile& profile) {
  const std::vector<MemorySpec> wanted = plan.policy == Policy::kAuto
                                             ? SmallerBudgets(spec, plan)
                                             : NamedPolicies(spec);
  std::vector<PlanRung> rungs;
  for (const MemorySpec& memory : wanted) {
    JobSpec smaller = spec;
    smaller.memory = memory;
    EBB_ASSIGN_OR_RETURN(Plan planned, PlanJob(smaller, plan.backend, profile));
    if (!planned.fits || PeakBytes(planned) >= PeakBytes(plan)) continue;
    rungs.push_back({memory, std::move(planned)});
  }
  std::stable_sort(
      rungs.begin(), rungs.end(), [](const PlanRung& a, const PlanRung& b) {
        return std::pair(-PeakBytes(a.plan), a.plan.recompute_flops) <
               std::pair(-PeakBytes(b.plan), b.plan.recompute_flops);
      });
  const auto last = std::unique(rungs.begin(), rungs.end(),
                                [](const PlanRung& a, const PlanRung& b) {
                                  return PeakBytes(a.plan) == PeakBytes(b.plan);
                                });
  rungs.erase(last, rungs.end());
  return rungs;
}

}  // namespace ebb
