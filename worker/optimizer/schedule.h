// The learning rate as a pure function of the step.
//   warmup  step s <= w:  lr * s / w
//   then, with p = (s - b) / (steps - b), b = max(w, 1), held within [0, 1]:
//   constant  lr        linear  lr + (min_lr - lr) * p
//   cosine    min_lr + (lr - min_lr) * (1 + cos(pi * p)) / 2
// So the peak is reached at step max(w, 1) (at step 1 without warmup) and
// min_lr at the last step, unless that is the step of the peak. Steps beyond
// the last have its decayed rate: min_lr, or lr for constant.
// Source of the cosine: Loshchilov & Hutter 2017, eq. 5, without restarts.
#pragma once

#include <cstdint>

#include "worker/model/job_spec.h"

namespace ebb {

// `step` is 1 for the first update. The result is finite and >= 0 for every
// finite lr and min_lr >= 0, whatever the other numbers.
double LearningRate(const OptimizerSpec& optimizer,
                    const LrScheduleSpec& schedule, int64_t steps,
                    int64_t step);

}  // namespace ebb
