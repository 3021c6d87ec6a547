#include "server/job_files.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/strip.h"
#include "kernels/status.h"
#include "proto/violations.h"
#include "worker/checkpoint/initial_weights.h"
#include "worker/data/token_source.h"
#include "worker/model/graph.h"
#include "worker/program/job_programs.h"

namespace ebb {
namespace {

// The weights of the model, one entry a layer.
absl::StatusOr<std::vector<WantedWeight>> WeightsOf(const JobSpec& spec) {
  EBB_ASSIGN_OR_RETURN(const Graph graph, BuildTrainingGraph(spec));
  std::vector<WantedWeight> weights;
  for (const Value& value : graph.values) {
    if (value.kind != ValueKind::kParameter) continue;
    const int count = value.per_layer ? graph.num_layers : 1;
    for (int layer = 0; layer < count; ++layer) {
      // Checkpoints hold the fp32 masters.
      weights.push_back({InstanceName(value.name, layer),
                         value.type.WithDType(DType::kF32), nullptr});
    }
  }
  return weights;
}

absl::Status CheckWeights(const JobSpec& spec) {
  EBB_ASSIGN_OR_RETURN(const std::vector<WantedWeight> wanted, WeightsOf(spec));
  return CheckInitialWeights(spec.checkpoint.init_from, spec.model, wanted);
}

}  // namespace

absl::Status CheckJobFiles(const JobSpec& spec) {
  std::vector<v1::Violation> violations;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  const auto add = [&](absl::string_view field, absl::string_view value,
                       const absl::Status& status) {
    // Field and value stand in the violation: once is enough.
    absl::string_view rule = status.message();
    for (const absl::string_view known : {field, value}) {
      if (absl::ConsumeSuffix(&rule, known)) absl::ConsumeSuffix(&rule, ": ");
    }
    v1::Violation& violation = violations.emplace_back();
    violation.set_field(std::string(field));
    violation.set_value(std::string(value));
    violation.set_rule(std::string(rule));
    if (absl::IsNotFound(status)) {
      violation.set_fix(
          "check the path: a relative one starts at the spec's folder, in "
          "--set at the working directory");
    }
  };
  for (const DataProblem& problem : CheckDataFiles(spec, 1).problems) {
    add(problem.field, problem.value, problem.status);
    if (violations.size() == 1) code = problem.status.code();
  }
  if (!spec.checkpoint.init_from.empty()) {
    const absl::Status weights = CheckWeights(spec);
    if (!weights.ok()) {
      add("checkpoint.init_from", spec.checkpoint.init_from, weights);
    }
  }
  if (violations.empty()) return absl::OkStatus();
  if (violations.size() > 1) code = absl::StatusCode::kInvalidArgument;
  return ViolationsStatus(code, violations);
}

}  // namespace ebb
