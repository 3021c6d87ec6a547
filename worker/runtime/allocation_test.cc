// A step allocates nothing: every call of the allocator in the process is
// counted while programs run.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "kernels/backend.h"
#include "worker/runtime/arena_memory.h"
#include "worker/runtime/executor.h"
#include "worker/runtime/testing/test_job.h"

namespace {
std::atomic<bool> is_counting = false;
std::atomic<int64_t> num_allocations = 0;
}  // namespace

// Sanitizers bring an allocator of their own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCounts = false;
#else
constexpr bool kCounts = true;

static void Count() {
  if (is_counting.load(std::memory_order_relaxed)) ++num_allocations;
}

// The C library's own under other names, for programs that stand in between.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) {
  Count();
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  Count();
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  Count();
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  Count();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  Count();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  Count();
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}
#endif

namespace ebb {
namespace {

struct Case {
  std::string name;
  bool llama = false;
  bool fused = true;
  DType precision = DType::kF32;
  Offload offload = Offload::kNone;
};

class Allocation : public testing::TestWithParam<Case> {};

TEST_P(Allocation, NoneInAStep) {
  if (!kCounts) GTEST_SKIP() << "the sanitizer has its own allocator";
  JobSpec spec = GetParam().llama ? SmallLlamaJob() : SmallJob();
  spec.model.dropout = 0.1;
  if (!GetParam().fused) spec.model.attention = AttentionKind::kUnfused;
  spec.precision = GetParam().precision;
  spec.memory.policy = Policy::kCheap;
  spec.memory.offload = GetParam().offload;
  const auto device = MakeTestDevice(spec);
  if (spec.precision == DType::kBf16 &&
      HasBf16Products(device->backend().instruction_set)) {
    GTEST_SKIP() << "oneDNN allocates when a primitive runs";
  }
  const PlannedJob planned = PlanTestJob(spec, device->backend());
  const Program& program = planned.programs.training;
  auto state = ArenaMemory::Allocate(*device, program.state_bytes);
  auto step_arena = ArenaMemory::Allocate(*device, program.step_bytes);
  auto host_arena = ArenaMemory::Allocate(*device, program.host_bytes);
  ASSERT_TRUE(state.ok() && step_arena.ok() && host_arena.ok());
  const ArenaView arenas = {state->data(),      state->bytes(),
                            step_arena->data(), step_arena->bytes(),
                            host_arena->data(), host_arena->bytes()};
  auto executor =
      Executor::Create(program, *device, arenas, {.precision = spec.precision});
  ASSERT_TRUE(executor.ok()) << executor.status();
  FormulaSource source(spec.model.seq_len);
  const auto run = [&](int64_t step) {
    const StepScalars scalars = {
        .seed = spec.seed, .step = step, .learning_rate = 1e-3f};
    return (*executor)->RunStep(scalars, source, 0).ok();
  };
  ASSERT_TRUE(run(1));  // threads start, kernels are resolved
  num_allocations = 0;
  is_counting = true;
  void* volatile probe = std::malloc(1);
  const bool ok = run(2);
  is_counting = false;
  std::free(probe);
  EXPECT_TRUE(ok);
  EXPECT_EQ(num_allocations, 1) << "beside the test's own";
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, Allocation,
    testing::Values(Case{"gpt"}, Case{"gpt_unfused", false, false},
                    Case{"llama", true},
                    Case{"gpt_bf16", false, true, DType::kBf16},
                    Case{"gpt_offload", false, true, DType::kF32,
                         Offload::kHost}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ebb
