// Warmup, then decay.
#include "worker/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ebb {

double LearningRate(const OptimizerSpec& optimizer,
                    const LrScheduleSpec& schedule, int64_t steps,
                    int64_t step) {
  const int64_t warmup = std::max<int64_t>(schedule.warmup, 0);
  step = std::max<int64_t>(step, 0);
  const int64_t peak = std::max<int64_t>(warmup, 1);
  if (step < warmup) {
    return optimizer.lr *
           (static_cast<double>(step) / static_cast<double>(warmup));
  }
  if (step <= peak) return optimizer.lr;
  if (schedule.decay == LrDecay::kConstant) return optimizer.lr;
  if (step >= steps) return schedule.min_lr;
  // Here peak < step < steps.
  const double progress =
      static_cast<double>(step - peak) / static_cast<double>(steps - peak);
  const double weight = schedule.decay == LrDecay::kLinear
                            ? 1 - progress
                            : (1 + std::cos(std::numbers::pi * progress)) / 2;
  return schedule.min_lr + (optimizer.lr - schedule.min_lr) * weight;
}

}  // namespace ebb
