// Number by number comparison of plan and program.
#include "worker/runtime/plan_check.h"

#include "absl/strings/str_cat.h"

namespace ebb {

std::vector<std::string> ComparePlan(const RankPlan& plan,
                                     const Program& training,
                                     int64_t step_arena_bytes,
                                     int64_t runtime_bytes) {
  std::vector<std::string> differences;
  const auto compare = [&](absl::string_view what, int64_t planned,
                           int64_t actual) {
    if (planned == actual) return;
    differences.push_back(absl::StrCat("rank ", plan.rank, " ", what, ": plan ",
                                       planned, " bytes, program ", actual,
                                       " bytes"));
  };
  MemoryBytes memory = training.account.memory;
  memory[MemoryClass::kRuntime] = runtime_bytes;
  for (int c = 0; c < kNumMemoryClasses; ++c) {
    const MemoryClass memory_class = static_cast<MemoryClass>(c);
    compare(MemoryClassName(memory_class), plan.memory[memory_class],
            memory[memory_class]);
  }
  compare("peak", plan.peak_bytes, memory.Sum());
  compare("largest saved", plan.saved_bytes, training.account.saved_bytes);
  compare("state arena", plan.state_arena_bytes, training.state_bytes);
  compare("step arena", plan.step_arena_bytes, step_arena_bytes);
  return differences;
}

}  // namespace ebb
