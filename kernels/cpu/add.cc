// Sum of two values.
#include "kernels/ops/add.h"

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/add.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

template <typename T>
void AddElements(const T* a, const T* b, T* y, size_t size) {
  ForEachVector(size, [&](size_t i, auto count) HWY_ATTR {
    StoreSome(hn::Add(LoadSome(a + i, count), LoadSome(b + i, count)), y + i,
              count);
  });
}

void AddRange(const OpCall& call, size_t begin, size_t end) {
  const Tensor* slots = call.slots;
  WithElementType(slots[add::kA].type.dtype, [&](auto element) {
    using T = decltype(element);
    AddElements(slots[add::kA].as<T>() + begin, slots[add::kB].as<T>() + begin,
                slots[add::kY].as<T>() + begin, end - begin);
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
  ParallelFor(call.slots[add::kA].type.num_elements(), kElementGrain,
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(AddRange)(call, begin, end);
              });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
