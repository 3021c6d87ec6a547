// The plan's bytes against those of the program that a rank made of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/program/plan.h"
#include "worker/program/program.h"

namespace ebb {

// Returns one line for every number that differs: each memory class, the saved
// bytes, and both arenas' sizes. Empty if all agree, as they do when plan and
// program come from equal code and backends. `step_arena_bytes`: that of the
// larger program of the job.
std::vector<std::string> ComparePlan(const RankPlan& plan,
                                     const Program& training,
                                     int64_t step_arena_bytes,
                                     int64_t runtime_bytes);

}  // namespace ebb
