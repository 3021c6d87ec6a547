// Plans a job: which values are kept, what that costs, whether it fits. Pure:
// no device, file or clock.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/job_spec.h"
#include "worker/program/cost_profile.h"
#include "worker/program/plan.h"

namespace ebb {

// The plan of the spec's policy, with predicted memory, seconds and FLOPs, a
// reason for every decision, and the cost of each other named policy or, for
// `auto`, of its candidates (auto_plan.h). A job that does not fit its budget
// is a plan with fits = false whose shortfall names the bytes and the nearest
// changes that fit.
// Errors: INVALID_ARGUMENT or UNIMPLEMENTED, naming the spec's field.
absl::StatusOr<Plan> PlanJob(const JobSpec& spec, const Backend& backend,
                             const CostProfile& profile);

// The text of the training program (and the evaluation program, if any).
absl::StatusOr<std::string> DumpJob(const JobSpec& spec, const Plan& plan,
                                    const Backend& backend);

}  // namespace ebb
