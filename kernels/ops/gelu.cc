// Description of gelu.
#include "kernels/ops/gelu.h"

#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::gelu {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kInput, Reads(kX)},
    {"y", Role::kOutput, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs&, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kX, 2));
  types[kY] = types[kX];
  return absl::OkStatus();
}

int64_t ForwardFlops(const OpAttrs&, Types types) {
  // x^3 2, its coefficient 1, sum 1, sqrt(2 / pi) 1, tanh 1, 1 + 1, x / 2 1,
  // product 1.
  return 9 * types[kX].num_elements();
}

int64_t BackwardFlops(const OpAttrs&, Types types, uint32_t bound) {
  // With u the argument of tanh and t = tanh(u):
  //   dx = dy * ((1 + t) / 2 + x / 2 * (1 - t^2) * u')
  //   u' = sqrt(2 / pi) * (1 + 3 * 0.044715 * x^2)
  // u 5, t 1, u' 3 (x^2 is shared), (1 + t) / 2 2, x / 2 1, 1 - t^2 2, the two
  // products 2, sum 1, dy 1.
  return HasSlot(bound, kX) ? 18 * types[kX].num_elements() : 0;
}

constexpr Overwrite kMayOverwrite[] = {
    {.backward = false, .written = kY, .read = kX, .read_gradient = false},
    {.backward = true, .written = kX, .read = kY, .read_gradient = true},
};

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kGelu,
    .name = "gelu",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .may_overwrite = kMayOverwrite,
    .row_slots = Reads(kX, kY),
    .is_elementwise = true,
};

}  // namespace ebb::gelu
