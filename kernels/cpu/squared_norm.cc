// Sum of squares in double: blocks of 4096 elements, then blocks in order.
#include "kernels/ops/squared_norm.h"

#include <array>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/squared_norm.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// One block: element i goes to running sum i mod 8, whatever the vector width,
// so that all instruction sets agree; then the sums in order.
double SquaredNormBlock(const float* x, size_t size) {
  constexpr size_t kSums = 8;
  const hn::CappedTag<double, kSums> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= size; i += kSums) {
    for (size_t part = 0; part < kSums; part += lanes) {
      const auto value = hn::PromoteTo(d, hn::LoadU(narrow, x + i + part));
      // The square of a float is exact in double.
      hn::Store(hn::Add(hn::Mul(value, value), hn::Load(d, sums + part)), d,
                sums + part);
    }
  }
  for (size_t part = 0; i < size; ++i, ++part) {
    sums[part] += static_cast<double>(x[i]) * x[i];
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {
namespace {

HWY_EXPORT(SquaredNormBlock);

constexpr int64_t kBlock = 4096;
// Blocks between two joins of the threads: their sums live on the stack.
constexpr int64_t kBlocksPerRound = 1024;

}  // namespace

void SquaredNormUpdate(const OpCall& call, Stream) {
  const float* x = call.slots[squared_norm::kX].as<float>();
  const int64_t size = call.slots[squared_norm::kX].type.num_elements();
  double& total = *call.slots[squared_norm::kTotal].as<double>();
  std::array<double, kBlocksPerRound> sums;
  for (int64_t first = 0; first < size; first += kBlocksPerRound * kBlock) {
    const int64_t num_blocks = std::min<int64_t>(
        kBlocksPerRound, (size - first + kBlock - 1) / kBlock);
    ParallelFor(num_blocks, 4, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t at = first + block * kBlock;
        sums[block] = HWY_DYNAMIC_DISPATCH(SquaredNormBlock)(
            x + at, std::min(kBlock, size - at));
      }
    });
    for (int64_t block = 0; block < num_blocks; ++block) total += sums[block];
  }
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
