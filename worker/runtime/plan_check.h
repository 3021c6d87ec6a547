// The plan's bytes against those of the programs that a rank made of it.
#pragma once

#include <string>
#include <vector>

#include "worker/program/plan.h"

namespace ebb {

// Returns one line for every number that differs: each memory class, the peak,
// the saved bytes, and the arenas' sizes. Empty if all agree, as they do when
// plan and programs come from equal code (PredictRank). `actual` is made with
// the backend of the plan, not of this machine: what a machine really has
// outside the arenas is a measurement and differs by some pages.
std::vector<std::string> ComparePlan(const RankPlan& planned,
                                     const RankPlan& actual);

}  // namespace ebb
