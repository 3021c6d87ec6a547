#include "worker/runtime/op_times.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "worker/program/cost_profile.h"

namespace ebb {
namespace {

// Ops of one launch, and what each would take by its roofline.
struct LaunchedOps {
  std::vector<std::pair<std::string, double>> ops;

  void Add(const Instruction& instruction, const CostProfile& roofline) {
    const InstructionTypes call(instruction);
    ops.emplace_back(
        OpKey(instruction.op, instruction.attrs, call.types, call.bound),
        OpSeconds(instruction.op, instruction.attrs, call.types, call.bound,
                  roofline));
  }
};

double MeanOfMiddleHalf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  // Of three, the one between.
  const size_t cut = values.size() == 3 ? 1 : values.size() / 4;
  return std::accumulate(values.begin() + cut, values.end() - cut, 0.0) /
         static_cast<double>(values.size() - 2 * cut);
}

}  // namespace

size_t OpTimes::NumLaunches(const Program& program) {
  size_t num_launches = 0;
  ForEachCompute(program, [&](const Block&, const Instruction& instruction) {
    if (!instruction.continues) ++num_launches;
  });
  return num_launches;
}

absl::Status OpTimes::Add(const Program& program, const Backend& backend,
                          const std::vector<double>& launch_seconds) {
  const CostProfile roofline = RooflineProfile(backend);
  // The keys of an instruction are made once, however often it runs.
  std::map<const Instruction*, LaunchedOps> launches;  // by the first of a loop
  size_t next = 0;
  ForEachCompute(
      program, [&](const Block& block, const Instruction& instruction) {
        if (instruction.continues) return;
        const size_t launch = next++;
        if (launch >= launch_seconds.size()) return;
        LaunchedOps& launched = launches[&instruction];
        if (launched.ops.empty()) {
          const size_t first = &instruction - block.instructions.data();
          launched.Add(instruction, roofline);
          for (size_t n = first + 1;
               n < block.instructions.size() && block.instructions[n].continues;
               ++n) {
            launched.Add(block.instructions[n], roofline);
          }
        }
        double all = 0;
        for (const auto& [key, share] : launched.ops) all += share;
        for (const auto& [key, share] : launched.ops) {
          seconds_[key].push_back(launch_seconds[launch] * share / all);
        }
      });
  if (next != launch_seconds.size()) {
    return absl::InternalError(absl::StrCat("the program launches ", next,
                                            " times, timed were ",
                                            launch_seconds.size()));
  }
  step_seconds_.push_back(
      std::accumulate(launch_seconds.begin(), launch_seconds.end(), 0.0));
  return absl::OkStatus();
}

std::map<std::string, double> OpTimes::Means() const {
  std::map<std::string, double> means;
  double sum = 0;  // of all runs, as long as their means
  for (const auto& [key, seconds] : seconds_) {
    means[key] = MeanOfMiddleHalf(seconds);
    sum += means[key] * static_cast<double>(seconds.size());
  }
  if (!(sum > 0)) return means;
  const double scale = MeanOfMiddleHalf(step_seconds_) *
                       static_cast<double>(step_seconds_.size()) / sum;
  for (auto& [key, mean] : means) mean *= scale;
  return means;
}

}  // namespace ebb
