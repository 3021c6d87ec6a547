// See planner_bench.h. The shapes are those of Korthikanti et al. 2022, table 3
// (hidden and heads of the largest for every number of layers).
#include "integration_tests/bench/planner_bench.h"

#include <algorithm>
#include <chrono>

#include "kernels/status.h"
#include "server/planner/plan_job.h"
#include "worker/program/job_programs.h"
#include "worker/program/lower.h"
#include "worker/program/policy.h"

namespace ebb::bench {
namespace {

constexpr int kRounds = 5;
constexpr double kEnoughSeconds = 2;

// The policies whose planning is timed.
constexpr Policy kPolicies[] = {Policy::kNone,  Policy::kSelective,
                                Policy::kCheap, Policy::kFull,
                                Policy::kSqrt,  Policy::kAuto};
// What the layers of a segment do, in turn.
constexpr Policy kSegmentPolicies[] = {Policy::kFull, Policy::kCheap,
                                       Policy::kNone, Policy::kSelective};

// The 1T shape: 128 layers, 512 microbatches.
JobSpec LargestJob(int layers) {
  JobSpec spec;
  spec.model.layers = layers;
  spec.model.hidden = 25600;
  spec.model.heads = spec.model.kv_heads = 160;
  spec.model.ffn = 4 * spec.model.hidden;
  spec.model.vocab = 51200;
  spec.model.seq_len = 2048;
  spec.model.attention = AttentionKind::kUnfused;
  spec.model.dropout = 0.1;
  spec.global_batch = 512;
  spec.micro_batch = 1;
  spec.steps = 1;
  return spec;
}

// A plan that gives each of `segments` equal ranges of layers another policy.
absl::StatusOr<Plan> PlanOfSegments(const Graph& graph, int segments) {
  Plan plan;
  plan.graph_fingerprint = graph.Fingerprint();
  for (int s = 0; s < segments; ++s) {
    const int first = graph.num_layers * s / segments;
    const int last = graph.num_layers * (s + 1) / segments - 1;
    MemorySpec memory;
    memory.policy = kSegmentPolicies[s % std::size(kSegmentPolicies)];
    EBB_ASSIGN_OR_RETURN(const Plan whole, MakePolicyPlan(graph, memory));
    for (Decision decision : whole.decisions) {
      decision.first_layer = std::max(decision.first_layer, first);
      decision.last_layer = std::min(decision.last_layer, last);
      if (decision.first_layer > decision.last_layer) continue;
      plan.decisions.push_back(decision);
    }
  }
  return plan;
}

// The least seconds of a few calls, of one if that takes long: what else runs
// on the machine only adds.
template <typename Call>
absl::StatusOr<double> LeastSeconds(const Call& call) {
  double least = 0;
  double all = 0;
  for (int round = 0; round < kRounds && all < kEnoughSeconds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    EBB_RETURN_IF_ERROR(call());
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    least = round == 0 ? seconds : std::min(least, seconds);
    all += seconds;
  }
  return least;
}

}  // namespace

absl::StatusOr<PlannerMeasurement> MeasurePlanner() {
  const Backend backend = BuiltInCpuBackend();
  const CostProfile profile = RooflineProfile(backend);
  PlannerMeasurement measured;
  JobSpec spec = LargestJob(128);
  // Half way between the peaks of none and full: auto has to choose.
  int64_t sum_of_peaks = 0;
  for (const Policy policy : {Policy::kNone, Policy::kFull}) {
    spec.memory.policy = policy;
    EBB_ASSIGN_OR_RETURN(const Plan plan, PlanJob(spec, backend, profile));
    sum_of_peaks += plan.ranks[0].peak_bytes;
  }
  spec.memory.budget_bytes = sum_of_peaks / 2;
  for (const Policy policy : kPolicies) {
    spec.memory.policy = policy;
    EBB_ASSIGN_OR_RETURN(const double seconds, LeastSeconds([&] {
                           return PlanJob(spec, backend, profile).status();
                         }));
    measured.plans.push_back({"gpt-1t", PolicyName(policy), spec.model.layers,
                              spec.num_microbatches(), seconds});
  }
  for (const int layers : {12, 48, 96, 128}) {
    spec = LargestJob(layers);
    EBB_ASSIGN_OR_RETURN(const Graph graph, BuildTrainingGraph(spec));
    for (const int segments : {1, 2, 3, 4}) {
      EBB_ASSIGN_OR_RETURN(const Plan plan, PlanOfSegments(graph, segments));
      EBB_ASSIGN_OR_RETURN(const double seconds, LeastSeconds([&] {
                             return LowerTraining(graph, plan, spec.optimizer,
                                                  spec.num_microbatches(),
                                                  backend)
                                 .status();
                           }));
      measured.lowerings.push_back({layers, segments, seconds});
    }
  }
  return measured;
}

}  // namespace ebb::bench
