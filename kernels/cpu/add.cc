// Sum of two values.
#include "kernels/ops/add.h"

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/add.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

void AddRange(const float* a, const float* b, float* y, size_t size) {
  ForEachVector(size, [&](size_t i, auto count) HWY_ATTR {
    StoreSome(hn::Add(LoadSome(a + i, count), LoadSome(b + i, count)), y + i,
              count);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(AddRange);

void AddForward(const OpCall& call, Stream) {
  const float* a = call.slots[add::kA].as<float>();
  const float* b = call.slots[add::kB].as<float>();
  float* y = call.slots[add::kY].as<float>();
  ParallelFor(call.slots[add::kA].type.num_elements(), kElementGrain,
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(AddRange)
                (a + begin, b + begin, y + begin, end - begin);
              });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
