// Times planning: no step is taken and no device is asked.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb::bench {

// PlanJob as `ebb plan` calls it, on a model under one policy.
struct PlanTime {
  std::string shape;
  std::string policy;
  int layers = 0;
  int num_microbatches = 0;
  double seconds = 0;  // the best of a few
};

// One lowering of a plan whose decisions differ between `segments` ranges of
// layers: what a search pays for a candidate.
struct LoweringTime {
  int layers = 0;
  int segments = 0;
  double seconds = 0;  // the best of a few
};

struct PlannerMeasurement {
  std::vector<PlanTime> plans;
  std::vector<LoweringTime> lowerings;
};

absl::StatusOr<PlannerMeasurement> MeasurePlanner();

}  // namespace ebb::bench
