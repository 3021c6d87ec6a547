// What the literature counts for a job, beside what Ebb stores and runs: so
// that published formulas and figures can be compared with ours. Pure.
//
// The rules of Korthikanti et al. 2022 (arXiv 2205.05198, sections 4 and 6.1,
// appendix A), applied to the graph:
// - A value that backward reads is kept, at 2 bytes an element whatever the
//   spec's precision; what the loss reads (logits) at 4.
// - A dropout keeps its mask, 1 byte an element.
// - Statistics of norms and attention (aux outputs) are not counted.
// - Of a policy that drops values, what makes them runs again as a whole: also
//   a product whose operand was dropped and whose result was kept (the context
//   product of selective, the last linear of full).
// - FLOPs are those of matrix products, attention as full square.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "worker/model/graph.h"
#include "worker/model/job_spec.h"

namespace ebb {

// The policies that the paper compares.
inline constexpr std::array<Policy, 3> kPaperPolicies = {
    Policy::kNone, Policy::kSelective, Policy::kFull};

// Bytes of one tensor of a layer, for one microbatch; by kPaperPolicies.
struct AccountedTensor {
  // "L*.mlp.act.y", "L*.attention_dropout.mask"; parts of one value that are
  // read as such by their own names ("L*.q").
  std::string value;
  std::array<int64_t, kPaperPolicies.size()> paper_bytes = {};
  std::array<int64_t, kPaperPolicies.size()> ebb_bytes = {};
};

// Sums under one policy.
struct AccountedBytes {
  int64_t layer_bytes = 0;    // of one layer
  int64_t layers_bytes = 0;   // of all
  int64_t outside_bytes = 0;  // of embedding, final norm and head
};

struct AccountedPolicy {
  Policy policy = Policy::kNone;
  AccountedBytes paper, ebb;
  // Of matrix products that run again, a step, over all microbatches. Ebb's are
  // those of whole ops: what fused attention computes twice inside its backward
  // pass is no decision of a policy.
  double paper_recompute_flops = 0;
  double ebb_recompute_flops = 0;
};

// Ways of counting a model's FLOPs per token that publications use. They differ
// by up to a fifth for one and the same run.
enum class FlopConvention : uint8_t {
  kCausal,         // 6 x parameters but input embeddings, half the square
  kFullSquare,     // 6 x parameters but input embeddings, all of the square
  kAllParameters,  // 6 x all parameters, all of the square
  kParametersOnly  // 6 x all parameters, no attention
};
inline constexpr std::array<FlopConvention, 4> kFlopConventions = {
    FlopConvention::kCausal, FlopConvention::kFullSquare,
    FlopConvention::kAllParameters, FlopConvention::kParametersOnly};

// causal, full_square, all_parameters, parameters_only
const char* FlopConventionName(FlopConvention convention);
// One line for people.
const char* FlopConventionText(FlopConvention convention);

// Of a forward and a backward pass.
double FlopsPerToken(const Graph& graph, FlopConvention convention);

struct TokenFlops {
  FlopConvention convention = FlopConvention::kCausal;
  double flops = 0;
};

struct PaperAccounting {
  std::vector<AccountedTensor> tensors;
  std::vector<AccountedPolicy> policies;  // as kPaperPolicies
  double model_flops = 0;                 // of matrix products, a step
  double layers_model_flops = 0;          // of these, in the layers
  std::vector<TokenFlops> token_flops;    // as kFlopConventions
};

// Errors: as PlanJob.
absl::StatusOr<PaperAccounting> AccountAsPaper(const JobSpec& spec,
                                               const Backend& backend);

}  // namespace ebb
