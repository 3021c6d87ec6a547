// What we decided: for every value that backward reads, in every layer, whether
// it is kept, computed again, or copied to host memory and back. Also what the
// decisions cost, for people.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "worker/model/job_spec.h"
#include "worker/program/memory_class.h"

namespace ebb {

enum class ActivationDecision : uint8_t {
  kKeep,
  kRecompute,  // once a group of layers: what made a later input of the group
               // is there for the layer's own backward, too
  // Made for the later inputs of its group and dropped at once, then made again
  // for the layer's own backward: inputs are checkpoints within the group
  // (Griewank & Walther 2000). For values of a layer, not for its input.
  kRecomputeTwice,
  kOffloadHost,  // copied to host memory, and back in time for backward
  kOffloadDisk,  // the same with a file
};

constexpr ActivationDecision kActivationDecisions[] = {
    ActivationDecision::kKeep, ActivationDecision::kRecompute,
    ActivationDecision::kRecomputeTwice, ActivationDecision::kOffloadHost,
    ActivationDecision::kOffloadDisk};

// keep, recompute, recompute_twice, offload
const char* ActivationDecisionName(ActivationDecision decision);
// The word for what is kept or offloaded encoded.
inline constexpr char kEncodeName[] = "encode";
// Where an offloaded value goes: host, disk. Empty for other decisions.
const char* OffloadPlaceName(ActivationDecision decision);

inline bool IsOffload(ActivationDecision decision) {
  return decision == ActivationDecision::kOffloadHost ||
         decision == ActivationDecision::kOffloadDisk;
}
inline bool IsRecompute(ActivationDecision decision) {
  return decision == ActivationDecision::kRecompute ||
         decision == ActivationDecision::kRecomputeTwice;
}

// A decision names a value of the graph, or one of these: all state of the
// optimizer, and all weights that the model computes with. They are kept or
// offloaded, all or nothing, whatever the layer.
inline constexpr char kOptimizerState[] = "optimizer";
inline constexpr char kParameters[] = "parameters";

inline bool IsOnState(const std::string& decided) {
  return decided == kOptimizerState || decided == kParameters;
}

// Decision on one value in layers first_layer..last_layer (both included; -1
// and -1 for a value outside the layers).
struct Decision {
  std::string value;  // template name: "L*.mlp_act.y"
  int first_layer = -1;
  int last_layer = -1;
  ActivationDecision decision = ActivationDecision::kKeep;
  // What is kept or offloaded is the value encoded in these elements, with a
  // loss: kBf16 or kF8E4M3. kNone: the value itself.
  DType encoded = DType::kNone;
  int64_t bytes = 0;   // of the value over the whole range; encoded: freed
  double seconds = 0;  // added to a step
  double flops = 0;    // added to a step
  std::string reason;
};

struct RankPlan {
  int rank = 0;
  MemoryBytes memory;  // at the moment of the peak
  int64_t peak_bytes = 0;
  int64_t state_arena_bytes = 0;
  int64_t step_arena_bytes = 0;
  int64_t saved_bytes = 0;  // largest sum of kSaved at any instruction
  int64_t host_bytes = 0;   // in host memory; not part of the peak
  int64_t disk_bytes = 0;   // on disk; not part of the peak
};

struct PlanCandidate {
  std::string policy;
  int64_t peak_bytes = 0;
  int64_t saved_bytes = 0;
  double step_seconds = 0;
  double model_flops = 0;
  double recompute_flops = 0;
  bool fits = false;
};

struct Plan {
  // Values that no decision names are kept.
  std::vector<Decision> decisions;
  uint64_t graph_fingerprint = 0;

  // All below is what people and the budget check read; lowering does not.
  Policy policy = Policy::kNone;
  int group = 0;
  bool fits = true;
  int64_t budget_bytes = 0;
  double step_seconds = 0;
  double bound_seconds = 0;
  double model_flops = 0;      // of one step
  double recompute_flops = 0;  // of one step
  std::vector<RankPlan> ranks;
  std::vector<PlanCandidate> pareto;
  std::vector<std::string> notes;
  std::string shortfall;  // if it does not fit: by how much, and what would
  Backend backend;
};

}  // namespace ebb
