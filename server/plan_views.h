// What PlanJob gives besides the plan, as messages: the memory of a step over
// its instructions, and what publications would count.
#pragma once

#include "absl/status/statusor.h"
#include "proto/plan_views.pb.h"
#include "worker/model/job_spec.h"
#include "worker/program/plan.h"

namespace ebb {

// Each may hold ten classes: an answer stays below a MiB.
inline constexpr int kMaxTimelinePoints = 4096;

// Of the training program, in at most `max_points` points.
absl::StatusOr<v1::Timeline> TimelineOfPlan(const JobSpec& spec,
                                            const Plan& plan, int max_points);

absl::StatusOr<v1::PaperAccounting> PaperAccountingOfPlan(const JobSpec& spec,
                                                          const Plan& plan);

}  // namespace ebb
