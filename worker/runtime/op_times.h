// What each op of a program took, from the seconds of its launches: the
// measured part of a CostProfile.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "worker/program/program.h"

namespace ebb {

class OpTimes {
 public:
  // Launches of one step.
  static size_t NumLaunches(const Program& program);

  // Adds what a step took: seconds of its launches in order (TimingDevice). A
  // row loop is one launch of several ops, which share its time as their
  // rooflines would.
  // Errors: INTERNAL if there are more or fewer than the program has.
  absl::Status Add(const Program& program, const Backend& backend,
                   const std::vector<double>& launch_seconds);

  // By OpKey, the mean of the middle half of all runs: a slow spell of the
  // machine counts little, and the means of a step's ops add up to the step.
  std::map<std::string, double> Means() const;

 private:
  std::map<std::string, std::vector<double>> seconds_;
};

}  // namespace ebb
