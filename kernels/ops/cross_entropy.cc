// Description of cross_entropy.
#include "kernels/ops/cross_entropy.h"

#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::cross_entropy {
namespace {

constexpr SlotDef kSlots[] = {
    {"logits", Role::kInput, Reads(kLogits, kTargets, kLse)},
    {"targets", Role::kIndex, Reads()},
    {"losses", Role::kOutput, Reads()},
    {"lse", Role::kAux, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs&, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kLogits, 2));
  const int64_t num_rows = types[kLogits].dims[0];
  EBB_RETURN_IF_ERROR(
      CheckType(kDef, types, kTargets, {DType::kI32, num_rows}));
  types[kLosses] = {DType::kF32, num_rows};
  types[kLse] = {DType::kF32, num_rows};
  return absl::OkStatus();
}

int64_t ForwardFlops(const OpAttrs&, Types types) {
  // Element: subtraction of the maximum, exp, sum. Row: log, addition of the
  // maximum, subtraction of the target's logit.
  return 3 * types[kLogits].num_elements() + 3 * types[kLogits].dims[0];
}

int64_t BackwardFlops(const OpAttrs&, Types types, uint32_t bound) {
  // Element: subtraction of lse, exp, scaling. Row: 1 at the target.
  return HasSlot(bound, kLogits)
             ? 3 * types[kLogits].num_elements() + types[kLogits].dims[0]
             : 0;
}

constexpr Overwrite kMayOverwrite[] = {
    {.backward = true,
     .written = kLogits,
     .read = kLogits,
     .read_gradient = false},
};

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kCrossEntropy,
    .name = "cross_entropy",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .may_overwrite = kMayOverwrite,
    .row_slots = Reads(kLogits, kTargets, kLosses, kLse),
};

}  // namespace ebb::cross_entropy
