// Description of squared_norm.
#include "kernels/ops/squared_norm.h"

#include "kernels/ops/no_flops.h"
#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::squared_norm {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kState, Reads()},
    {"total", Role::kState, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs&, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckRank(kDef, types, kX, DType::kF32, types[kX].rank));
  return CheckType(kDef, types, kTotal, {DType::kF64, 1});
}

int64_t ForwardFlops(const OpAttrs&, Types types) {
  return 2 * types[kX].num_elements();
}

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kSquaredNorm,
    .name = "squared_norm",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = NoGradientFlops,
};

}  // namespace ebb::squared_norm
