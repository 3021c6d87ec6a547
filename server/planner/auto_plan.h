// The plan of policy `auto`: the fastest that fits the budget. Pure.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/graph.h"
#include "worker/model/job_spec.h"
#include "worker/program/cost_profile.h"
#include "worker/program/plan.h"
#include "worker/program/policy.h"

namespace ebb {

struct AutoPlan {
  // Policy and decisions; if nothing fits the budget, of the smallest.
  Plan plan;
  // What no plan within the budget can do better, seconds of a step; 0 if
  // nothing fits.
  double bound_seconds = 0;
  // Candidates that no other beats in both peak and seconds, smallest peak
  // first: the smallest, the fastest, the chosen one, and some twenty between.
  // Choosing for a candidate's peak gives that candidate.
  std::vector<PlanCandidate> pareto;

  // The candidate that was chosen, or null if none fits.
  const PlanCandidate* chosen() const;
};

enum class AutoEffort : uint8_t {
  kWhole,
  kCoarse,  // a third of the candidates of kWhole, in a third of the time
};

// The candidates of a job, priced by lowering each. They depend on no budget,
// and of those that fit one the fastest is taken (of equally fast ones the
// smallest): so a smaller budget never gives a larger peak nor a faster step.
class AutoPlanner {
 public:
  // `spec` but for its budget, and `graph`, which must outlive the planner.
  // Errors: those of lowering.
  static absl::StatusOr<AutoPlanner> Create(const JobSpec& spec,
                                            const Graph& graph,
                                            const Backend& backend,
                                            const CostProfile& profile,
                                            AutoEffort effort);

  AutoPlan Choose(int64_t budget_bytes) const;

 private:
  struct Priced {
    std::vector<Decision> decisions;
    PlanCandidate candidate;
  };

  AutoPlanner(const Graph& graph, const CostProfile& profile,
              const JobSpec& spec, Encoding encoding)
      : graph_(&graph),
        profile_(profile),
        offload_(spec.memory.offload),
        encoding_(std::move(encoding)),
        num_microbatches_(spec.num_microbatches()) {}

  // Leaves those that no other beats, smallest first.
  void DropDominated();

  const Graph* graph_;
  CostProfile profile_;
  Offload offload_;
  Encoding encoding_;
  int num_microbatches_;
  bool state_fits_host_ = true;
  std::vector<Priced> candidates_;
  int64_t fixed_bytes_ = 0;   // of every plan while the head runs
  double least_seconds_ = 0;  // without recompute and copies
};

}  // namespace ebb
