// Number by number comparison of plan and programs.
#include "worker/runtime/plan_check.h"

#include "absl/strings/str_cat.h"

namespace ebb {

std::vector<std::string> ComparePlan(const RankPlan& planned,
                                     const RankPlan& actual) {
  std::vector<std::string> differences;
  const auto compare = [&](absl::string_view what, int64_t planned_bytes,
                           int64_t actual_bytes) {
    if (planned_bytes == actual_bytes) return;
    differences.push_back(
        absl::StrCat("rank ", planned.rank, " ", what, ": plan ", planned_bytes,
                     " bytes, program ", actual_bytes, " bytes"));
  };
  for (int c = 0; c < kNumMemoryClasses; ++c) {
    const MemoryClass memory_class = static_cast<MemoryClass>(c);
    compare(MemoryClassName(memory_class), planned.memory[memory_class],
            actual.memory[memory_class]);
  }
  compare("peak", planned.peak_bytes, actual.peak_bytes);
  compare("largest saved", planned.saved_bytes, actual.saved_bytes);
  compare("state arena", planned.state_arena_bytes, actual.state_arena_bytes);
  compare("host arena", planned.host_bytes, actual.host_bytes);
  compare("disk arena", planned.disk_bytes, actual.disk_bytes);
  compare("step arena", planned.step_arena_bytes, actual.step_arena_bytes);
  return differences;
}

}  // namespace ebb
