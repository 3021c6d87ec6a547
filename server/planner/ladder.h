// What a job does when the memory of its plan cannot be had. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/job_spec.h"
#include "worker/program/cost_profile.h"
#include "worker/program/plan.h"

namespace ebb {

// Another way to run the same job: equal bits, less memory.
struct PlanRung {
  // The spec's, but for what chooses the plan.
  MemorySpec memory;
  Plan plan;
};

// Plans that fit, of smaller peak than `plan`, which PlanJob made of the spec,
// in order of falling peak: the named policies, of two that need equal memory
// the cheaper alone; for `auto` a few of its own candidates down to the
// smallest, as what it chooses for a smaller budget. Errors: those of PlanJob.
absl::StatusOr<std::vector<PlanRung>> PlanLadder(const JobSpec& spec,
                                                 const Plan& plan,
                                                 const CostProfile& profile);

}  // namespace ebb
