// What people should hear of a step that a job goes on after.
#pragma once

#include <optional>

#include "proto/job_service.pb.h"

namespace ebb {

// The warning that `step` is worth, if it is graver than the one that `job` has
// already.
std::optional<v1::TrainingWarning> WarningOf(const v1::Step& step,
                                             const v1::Job& job);

}  // namespace ebb
