// The plan's bytes against those of the program that a rank made of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/program/plan.h"
#include "worker/program/program.h"

namespace ebb {

// Returns one line for every number of `plan`'s rank `rank` that differs: each
// memory class, the peak, the saved bytes, and both arenas' sizes. Empty if all
// agree, as they do when plan and program come from equal code. `runtime` is
// compared with the backend that the plan was made with: what a machine really
// has outside the arenas is a measurement and differs by some pages.
// `step_arena_bytes`: that of the larger program of the job.
std::vector<std::string> ComparePlan(const Plan& plan, int rank,
                                     const Program& training,
                                     int64_t step_arena_bytes);

}  // namespace ebb
