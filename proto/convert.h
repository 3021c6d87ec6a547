// Between messages and the plain structs of the pure half, which knows no
// protobuf. The only file that does this.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "proto/plan.pb.h"
#include "proto/report.pb.h"
#include "proto/spec.pb.h"
#include "worker/model/job_spec.h"
#include "worker/program/plan.h"
#include "worker/program/step_report.h"

namespace ebb {

// REQUIRES: spec is effective (EffectiveSpec made it).
// Errors: INVALID_ARGUMENT, UNIMPLEMENTED as ValidateSpec, for a spec from the
// wire that is not what a coordinator sends.
absl::StatusOr<JobSpec> JobSpecFromMessage(const v1::JobSpec& spec);

Backend BackendFromMessage(const v1::Backend& message);
v1::Backend BackendToMessage(const Backend& backend);

// Errors: INVALID_ARGUMENT for an unknown policy, decision or memory class.
absl::StatusOr<Plan> PlanFromMessage(const v1::Plan& message);
v1::Plan PlanToMessage(const Plan& plan);
// Errors: as PlanFromMessage.
absl::StatusOr<std::vector<Plan>> PlansFromMessages(
    const google::protobuf::RepeatedPtrField<v1::Plan>& messages);

// Puts the policy, what belongs to it and the budget into the message; its
// other fields stay.
void MemoryToMessage(const MemorySpec& memory, v1::MemorySpec* message);

// A step as one rank saw it: one entry in `ranks`, predicted bytes from its
// plan. Every memory class is present, zero or not.
v1::Step StepToMessage(const StepReport& report, int attempt,
                       absl::string_view policy, const RankPlan& predicted,
                       absl::Time time);

v1::EvalReport EvalToMessage(const EvalResult& result, int attempt);

}  // namespace ebb
