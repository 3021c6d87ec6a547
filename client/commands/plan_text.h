// A plan as people read it. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ebb {

namespace v1 {
class Plan;
}

// What `ebb plan` shows: memory per class, arenas, FLOPs, what each policy
// would cost, decisions with reasons, notes.
std::string PlanText(const v1::Plan& plan, absl::string_view job_name);

// Memory per class and arenas alone.
std::string PlanMemoryText(const v1::Plan& plan);

// Why a plan that does not fit does not, and the nearest policy that does.
std::string ShortfallText(const v1::Plan& plan);

}  // namespace ebb
