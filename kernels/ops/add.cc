// Description of add.
#include "kernels/ops/add.h"

#include "kernels/ops/no_flops.h"
#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::add {
namespace {

constexpr SlotDef kSlots[] = {
    {"a", Role::kInput, Reads(), /*optional=*/false,
     /*grad_passes_through=*/true},
    {"b", Role::kInput, Reads(), /*optional=*/false,
     /*grad_passes_through=*/true},
    {"y", Role::kOutput, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs&, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kA, types[kA].rank));
  EBB_RETURN_IF_ERROR(CheckType(kDef, types, kB, types[kA]));
  types[kY] = types[kA];
  return absl::OkStatus();
}

int64_t ForwardFlops(const OpAttrs&, Types types) {
  return types[kY].num_elements();
}

constexpr Overwrite kMayOverwrite[] = {
    {.backward = false, .written = kY, .read = kA, .read_gradient = false},
    {.backward = false, .written = kY, .read = kB, .read_gradient = false},
};

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kAdd,
    .name = "add",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = NoGradientFlops,
    .may_overwrite = kMayOverwrite,
    .row_slots = Reads(kA, kB, kY),
};

}  // namespace ebb::add
