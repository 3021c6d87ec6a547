// The display of a job that is being followed: what is known of it, and its
// text. Pure: no clock, no terminal.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace ebb {

struct Progress {
  // Lower case: "queued", "running".
  std::string state;
  // The job is in its final state: nothing remains.
  bool ended = false;
  // 0: no step is known yet, and the fields below it are meaningless.
  int64_t step = 0;
  int64_t planned_steps = 0;
  double loss = 0;
  double tokens_per_second = 0;
  // Largest sum of the memory classes over ranks, as counted.
  int64_t peak_bytes = 0;
  // Device memory that a rank may use.
  int64_t budget_bytes = 0;
  // Of all FLOPs of the step, attention as full square.
  double recompute_share = 0;
  // Moving average.
  double seconds_per_step = 0;
};

// What Progress takes from one step.
struct ProgressStep {
  int64_t step = 0;
  double loss = 0;
  int64_t tokens = 0;
  double duration_seconds = 0;
  int64_t peak_bytes = 0;
  double model_flops = 0;
  double recompute_flops = 0;
};

// Takes a step in: rates are moving averages, the rest is the step's.
void AddStep(const ProgressStep& step, Progress* progress);

// Time to the last planned step; infinite while no step is known, zero after
// the job's end.
absl::Duration RemainingTime(const Progress& progress);

// One line with a bar, at most `columns` wide: the bar shrinks first, then
// fields fall off the right end. Plain ASCII.
std::string RenderBar(const Progress& progress, int columns);

// One line without a bar, for logs and pipes.
std::string RenderLine(const Progress& progress);

}  // namespace ebb
