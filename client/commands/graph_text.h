// Schedules of computation graphs as people read them. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace ebb {

namespace v1 {
class CheckScheduleResponse;
class PlanGraphResponse;
}  // namespace v1

// What the schedule costs, then a step a line.
std::string GraphPlanText(const v1::PlanGraphResponse& plan,
                          const std::string& file, int64_t budget_bytes);

std::string CheckedScheduleText(const v1::CheckScheduleResponse& checked,
                                const std::string& file);

}  // namespace ebb
