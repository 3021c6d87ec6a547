#include "server/planner/auto_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "kernels/status.h"
#include "server/planner/auto_search.h"
#include "server/planner/group_options.h"
#include "server/planner/job_bound.h"
#include "worker/program/job_programs.h"
#include "worker/program/lower.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

// Sizes for which a candidate is sought. A step's seconds change between two
// neighbours by some five-hundredth of what all recompute can take.
constexpr int kNumSizes = 160;
// Every third of them.
constexpr int kNumCoarseSizes = 54;
static_assert((kNumSizes - 1) % (kNumCoarseSizes - 1) == 0);

// Of sums of many doubles: so much less is certain.
constexpr double kRounding = 1e-9;

// Candidates that a plan carries, spread evenly over those that no other beats.
constexpr size_t kMostShown = 20;

// Gradients and totals: what the blocks before the microbatches allocate.
int64_t BytesOfWholeStep(const Program& program) {
  int64_t bytes = 0;
  for (int b = 0; b < program.begin_microbatch; ++b) {
    const Block& block = program.blocks[b];
    for (const Instruction& instruction : block.instructions) {
      for (const int32_t buffer : instruction.allocates) {
        bytes += block.count * block.buffers[buffer].bytes;
      }
    }
  }
  return bytes;
}

}  // namespace

const PlanCandidate* AutoPlan::chosen() const {
  const PlanCandidate* last = nullptr;  // that fits: the fastest
  for (const PlanCandidate& candidate : pareto) {
    if (candidate.fits) last = &candidate;
  }
  return last;
}

absl::StatusOr<AutoPlanner> AutoPlanner::Create(const JobSpec& spec,
                                                const Graph& graph,
                                                const Backend& backend,
                                                const CostProfile& profile,
                                                AutoEffort effort) {
  EBB_ASSIGN_OR_RETURN(Encoding encoding,
                       Encoding::Create(graph, spec.memory.encode));
  EBB_ASSIGN_OR_RETURN(
      const GroupOptions options,
      FindGroupOptions(graph, spec, encoding, backend, profile));
  std::vector<std::vector<Decision>> ways;
  const auto add_ways = [&](const GroupOptions& of) {
    for (const auto& runs : FindCandidates(
             of, graph.num_layers,
             effort == AutoEffort::kWhole ? kNumSizes : kNumCoarseSizes)) {
      ways.push_back(DecisionsOf(graph, of, runs));
      if (encoding.encodes()) {
        ways.back() = encoding.Apply(graph, ways.back());
      }
    }
  };
  add_ways(options);
  // What is found with more to choose from is not always better: plans without
  // offload compete, so that leave to offload makes none slower.
  if (spec.memory.offload != Offload::kNone) {
    JobSpec without = spec;
    without.memory.offload = Offload::kNone;
    EBB_ASSIGN_OR_RETURN(
        const GroupOptions kept,
        FindGroupOptions(graph, without, encoding, backend, profile));
    add_ways(kept);
  }
  // The named policies compete; none of them needs host memory.
  for (const Policy policy : {Policy::kNone, Policy::kSelective, Policy::kCheap,
                              Policy::kFull, Policy::kSqrt}) {
    MemorySpec named;
    named.policy = policy;
    named.encode = spec.memory.encode;
    EBB_ASSIGN_OR_RETURN(Plan plan, MakePolicyPlan(graph, named));
    ways.push_back(std::move(plan.decisions));
  }

  AutoPlanner planner(graph, profile, spec, std::move(encoding));
  int64_t evaluation_step_bytes = 0;
  for (std::vector<Decision>& way : ways) {
    Plan plan;
    plan.graph_fingerprint = graph.Fingerprint();
    plan.decisions = std::move(way);
    DecideState(spec.memory, plan.decisions);
    JobPrograms programs;
    if (planner.fixed_bytes_ == 0) {
      EBB_ASSIGN_OR_RETURN(programs, LowerJob(spec, plan, backend, 1));
      if (programs.evaluation.has_value()) {
        evaluation_step_bytes = programs.evaluation->step_bytes;
      }
      planner.fixed_bytes_ =
          backend.runtime_bytes + programs.training.state_bytes +
          BytesOfWholeStep(programs.training) + options.head_bytes;
    } else {
      EBB_ASSIGN_OR_RETURN(programs.training,
                           LowerTraining(graph, plan, spec.optimizer,
                                         spec.num_microbatches(), backend));
      programs.step_bytes =
          std::max(programs.training.step_bytes, evaluation_step_bytes);
      programs.host_bytes = programs.training.host_bytes;
      programs.disk_bytes = programs.training.disk_bytes;
    }
    const RankPlan rank = PredictRank(programs, backend);
    const StepSeconds seconds = SecondsOf(programs.training, profile);
    planner.least_seconds_ =
        seconds.total - seconds.recompute - seconds.copies - seconds.encoding;
    // What host memory does not hold is no plan; state is there under any.
    planner.state_fits_host_ =
        rank.host_bytes - programs.host_bytes <= spec.memory.host_budget_bytes;
    if (programs.host_bytes > 0 &&
        rank.host_bytes > spec.memory.host_budget_bytes) {
      continue;
    }
    Priced priced;
    priced.decisions = std::move(plan.decisions);
    priced.candidate.policy = PolicyName(Policy::kAuto);
    priced.candidate.peak_bytes = rank.peak_bytes;
    priced.candidate.saved_bytes = rank.saved_bytes;
    priced.candidate.step_seconds = seconds.total;
    priced.candidate.model_flops = programs.training.account.model_flops;
    priced.candidate.recompute_flops =
        programs.training.account.recompute_flops;
    planner.candidates_.push_back(std::move(priced));
  }
  planner.DropDominated();
  return planner;
}

void AutoPlanner::DropDominated() {
  std::stable_sort(
      candidates_.begin(), candidates_.end(),
      [](const Priced& a, const Priced& b) {
        return std::tie(a.candidate.peak_bytes, a.candidate.step_seconds) <
               std::tie(b.candidate.peak_bytes, b.candidate.step_seconds);
      });
  std::vector<Priced> best;
  for (Priced& priced : candidates_) {
    if (best.empty() ||
        priced.candidate.step_seconds < best.back().candidate.step_seconds) {
      best.push_back(std::move(priced));
    }
  }
  candidates_ = std::move(best);
}

AutoPlan AutoPlanner::Choose(int64_t budget_bytes) const {
  AutoPlan found;
  found.plan.policy = Policy::kAuto;
  found.plan.graph_fingerprint = graph_->Fingerprint();
  const Priced* chosen = &candidates_.front();
  bool fits = false;
  for (const Priced& priced : candidates_) {
    if (priced.candidate.peak_bytes > budget_bytes) break;
    chosen = &priced;
    fits = true;
  }
  found.plan.decisions = chosen->decisions;
  const size_t count = candidates_.size();
  for (size_t i = 0; i < count; ++i) {
    const bool is_first_of_share =
        i == 0 || i * kMostShown / count != (i - 1) * kMostShown / count;
    if (!is_first_of_share && i + 1 != count && &candidates_[i] != chosen) {
      continue;
    }
    found.pareto.push_back(candidates_[i].candidate);
    found.pareto.back().fits =
        state_fits_host_ && candidates_[i].candidate.peak_bytes <= budget_bytes;
  }
  if (!fits) return found;
  const double recompute =
      num_microbatches_ * LeastRecomputeSeconds(*graph_, profile_,
                                                budget_bytes - fixed_bytes_,
                                                offload_, encoding_);
  found.bound_seconds = (least_seconds_ + recompute) * (1 - kRounding);
  return found;
}

}  // namespace ebb
