// The way back from encode's codes.
#include "kernels/ops/decode.h"

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/ops/encode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/decode.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/f8-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

void DecodeRows(const OpCall& call, size_t begin, size_t end) {
  const Tensor& codes = call.slots[decode::kCode];
  const size_t columns = encode::RowElements(codes.type);
  WithElementType(call.attrs->result, [&](auto element) {
    using T = decltype(element);
    for (size_t row = begin; row < end; ++row) {
      T* const x = call.slots[decode::kX].as<T>() + row * columns;
      if (codes.type.dtype == DType::kBf16) {
        const Bf16* const code = codes.as<Bf16>() + row * columns;
        ForEachVector(columns, [&](size_t i, auto count) HWY_ATTR {
          StoreSome(LoadSome(code + i, count), x + i, count);
        });
        continue;
      }
      const F8E4M3* const code = codes.as<F8E4M3>() + row * columns;
      const FloatVec scale =
          hn::Set(Floats(), call.slots[decode::kScale].as<float>()[row]);
      ForEachVector(columns, [&](size_t i, auto count) HWY_ATTR {
        StoreSome(hn::Mul(WidenF8(LoadCodes(code + i, count)), scale), x + i,
                  count);
      });
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(DecodeRows);

void DecodeForward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[decode::kCode].type;
  ParallelFor(encode::NumRows(type), RowGrain(encode::RowElements(type)),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(DecodeRows)(call, begin, end);
              });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
