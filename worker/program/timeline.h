// The memory of a step over its instructions, thinned out to what a picture can
// show, by a walk over the program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/program/memory_class.h"
#include "worker/program/program.h"

namespace ebb {

// Consecutive instructions, and the memory at the largest moment among them:
// thinning out hides no peak.
struct TimelinePoint {
  int64_t first_instruction = 0;
  int64_t num_instructions = 0;
  int64_t num_recompute = 0;  // of these
  MemoryBytes memory;         // state and step arena, without kRuntime
};

// The instructions of one block, all its iterations.
struct TimelineBlock {
  std::string name;  // "forward_layer"
  int64_t first_instruction = 0;
  int64_t num_instructions = 0;
  int first_layer = -1;  // the lowest and the highest; -1 and -1: none
  int last_layer = -1;
  bool in_microbatch = false;
};

// Instructions are counted from the begin of the step; of its microbatches,
// which are all alike, one is spelled out.
struct Timeline {
  int64_t num_instructions = 0;
  int num_microbatches = 1;
  std::vector<TimelinePoint> points;
  std::vector<TimelineBlock> blocks;
};

// At most `max_points` (at least 1) points, none of them empty. Memory is that
// of AccountFor: the largest point is the account's.
// Errors: INTERNAL as AccountFor.
absl::StatusOr<Timeline> MakeTimeline(const Program& program, int max_points);

}  // namespace ebb
