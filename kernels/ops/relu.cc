// Description of relu.
#include "kernels/ops/relu.h"

#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::relu {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kInput, Reads(kMask)},
    {"y", Role::kOutput, Reads()},
    {"mask", Role::kAux, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs&, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kX, 2));
  types[kY] = types[kX];
  types[kMask] = {DType::kI32, types[kX].dims[0],
                  (types[kX].dims[1] + kMaskBits - 1) / kMaskBits};
  return absl::OkStatus();
}

// A comparison.
int64_t ForwardFlops(const OpAttrs&, Types types) {
  return types[kX].num_elements();
}

// A choice.
int64_t BackwardFlops(const OpAttrs&, Types types, uint32_t bound) {
  return HasSlot(bound, kX) ? types[kY].num_elements() : 0;
}

constexpr Overwrite kMayOverwrite[] = {
    {.backward = false, .written = kY, .read = kX, .read_gradient = false},
    {.backward = true, .written = kX, .read = kY, .read_gradient = true},
};

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kRelu,
    .name = "relu",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .may_overwrite = kMayOverwrite,
    .row_slots = Reads(kX, kY, kMask),
};

}  // namespace ebb::relu
