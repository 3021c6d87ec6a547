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

  // By OpKey, the mean of the middle half of all runs, which a slow spell of
  // the machine moves little; all scaled alike so that a step's add up to the
  // middle ones of the steps: some slow runs are part of every step.
  std::map<std::string, double> Means() const;

 private:
  std::map<std::string, std::vector<double>> seconds_;
  std::vector<double> step_seconds_;  // in all launches
};

}  // namespace ebb
