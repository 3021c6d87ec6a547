// Description of fill_zero.
#include "kernels/ops/fill_zero.h"

#include "kernels/ops/no_flops.h"
#include "kernels/ops/type_check.h"

namespace ebb::fill_zero {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kState, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs&, std::span<TensorType> types) {
  if (!types[kX].bound()) {
    return SlotError(kDef, kX, "any type", types[kX]);
  }
  return CheckRank(kDef, types, kX, types[kX].dtype, types[kX].rank);
}

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kFillZero,
    .name = "fill_zero",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = NoFlops,
    .backward_flops = NoGradientFlops,
};

}  // namespace ebb::fill_zero
