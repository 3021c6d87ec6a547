// A plan as people read it. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ebb {

namespace v1 {
class Plan;
class Step;
}  // namespace v1

// What `ebb plan` shows: memory per class, arenas, FLOPs, what each policy
// would cost, decisions with reasons, notes.
std::string PlanText(const v1::Plan& plan, absl::string_view job_name);

// Memory per class and arenas alone. With a step of the job, what its ranks
// measured stands beside what was predicted.
std::string PlanMemoryText(const v1::Plan& plan,
                           const v1::Step* measured = nullptr);

}  // namespace ebb
