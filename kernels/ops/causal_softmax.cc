// Description of causal_softmax.
#include "kernels/ops/causal_softmax.h"

#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::causal_softmax {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kInput, Reads(kY)},
    {"y", Role::kOutput, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs&, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kX, 4));
  if (types[kX].dims[2] != types[kX].dims[3]) {
    return SlotError(kDef, kX, "equal dims 2 and 3", types[kX]);
  }
  types[kY] = types[kX];
  return absl::OkStatus();
}

int64_t ForwardFlops(const OpAttrs&, Types types) {
  // Subtraction of the maximum, exp, sum, division; over the full square.
  return 4 * types[kX].num_elements();
}

int64_t BackwardFlops(const OpAttrs&, Types types, uint32_t bound) {
  // Sum of dy * y 2, subtraction 1, product 1.
  return HasSlot(bound, kX) ? 4 * types[kX].num_elements() : 0;
}

constexpr Overwrite kMayOverwrite[] = {
    {.backward = false, .written = kY, .read = kX, .read_gradient = false},
    {.backward = true, .written = kX, .read = kY, .read_gradient = true},
};

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kCausalSoftmax,
    .name = "causal_softmax",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .may_overwrite = kMayOverwrite,
    .row_slots = Reads(kX, kY),
};

}  // namespace ebb::causal_softmax
