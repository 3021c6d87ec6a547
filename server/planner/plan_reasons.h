// Why a plan decides as it does, for people: what each decision saves and
// costs, and what it was weighed against. Pure.
#pragma once

#include "worker/model/job_spec.h"
#include "worker/program/cost_profile.h"
#include "worker/program/job_programs.h"
#include "worker/program/plan.h"
#include "worker/program/policy.h"

namespace ebb {

// Fills in bytes, seconds, FLOPs and reason of every decision, and leaves out
// those that say nothing: on a value that nobody reads later. `programs` are
// the plan's.
void ExplainDecisions(const JobSpec& spec, const JobPrograms& programs,
                      const CostProfile& profile, const Encoding& encoding,
                      Plan& plan);

}  // namespace ebb
