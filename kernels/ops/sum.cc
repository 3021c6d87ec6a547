// Description of sum.
#include "kernels/ops/sum.h"

#include "kernels/ops/no_flops.h"
#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::sum {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kInput, Reads()},
    {"total", Role::kState, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs&, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckRank(kDef, types, kX, DType::kF32, 1));
  return CheckType(kDef, types, kTotal, {DType::kF64, 1});
}

int64_t ForwardFlops(const OpAttrs&, Types types) {
  return types[kX].num_elements();
}

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kSum,
    .name = "sum",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = NoGradientFlops,
};

}  // namespace ebb::sum
