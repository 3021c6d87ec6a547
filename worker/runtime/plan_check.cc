// Number by number comparison of plan and program.
#include "worker/runtime/plan_check.h"

#include "absl/strings/str_cat.h"

namespace ebb {

std::vector<std::string> ComparePlan(const Plan& plan, int rank,
                                     const Program& training,
                                     int64_t step_arena_bytes) {
  const RankPlan& planned = plan.ranks[rank];
  std::vector<std::string> differences;
  const auto compare = [&](absl::string_view what, int64_t plan_bytes,
                           int64_t actual) {
    if (plan_bytes == actual) return;
    differences.push_back(absl::StrCat("rank ", planned.rank, " ", what,
                                       ": plan ", plan_bytes,
                                       " bytes, program ", actual, " bytes"));
  };
  MemoryBytes memory = training.account.memory;
  memory[MemoryClass::kRuntime] = plan.backend.runtime_bytes;
  for (int c = 0; c < kNumMemoryClasses; ++c) {
    const MemoryClass memory_class = static_cast<MemoryClass>(c);
    compare(MemoryClassName(memory_class), planned.memory[memory_class],
            memory[memory_class]);
  }
  compare("peak", planned.peak_bytes, memory.Sum());
  compare("largest saved", planned.saved_bytes, training.account.saved_bytes);
  compare("state arena", planned.state_arena_bytes, training.state_bytes);
  compare("step arena", planned.step_arena_bytes, step_arena_bytes);
  return differences;
}

}  // namespace ebb
