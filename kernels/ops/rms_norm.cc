// Description of rms_norm.
#include "kernels/ops/rms_norm.h"

#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::rms_norm {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kInput, Reads(kX, kGain, kRstd)},
    {"gain", Role::kParam, Reads(kX, kRstd)},
    {"y", Role::kOutput, Reads()},
    {"rstd", Role::kAux, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs& attrs, std::span<TensorType> types) {
  if (!(attrs.epsilon >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        kDef.name, ": epsilon: must be at least 0, got ", attrs.epsilon));
  }
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kX, 2));
  EBB_RETURN_IF_ERROR(
      CheckType(kDef, types, kGain, {types[kX].dtype, types[kX].dims[1]}));
  types[kY] = types[kX];
  types[kRstd] = {DType::kF32, types[kX].dims[0]};
  return absl::OkStatus();
}

int64_t ForwardFlops(const OpAttrs&, Types types) {
  // Element: sum of squares 2, scaling 1, gain 1.
  // Row: division by D, epsilon, root, reciprocal.
  return 4 * types[kX].num_elements() + 4 * types[kX].dims[0];
}

int64_t BackwardFlops(const OpAttrs&, Types types, uint32_t bound) {
  const int64_t num_elements = types[kX].num_elements();
  int64_t flops = 0;
  // xhat = x * rstd, shared by both gradients.
  if (bound != 0) flops += num_elements;
  // With g = dy * gain: dx = rstd * (g - xhat * mean(g * xhat)).
  // Element: g 1, sum 2, subtraction 2, scaling 1. Row: division by D.
  if (HasSlot(bound, kX)) flops += 6 * num_elements + types[kX].dims[0];
  if (HasSlot(bound, kGain)) flops += 2 * num_elements;
  return flops;
}

constexpr Overwrite kMayOverwrite[] = {
    {.backward = true, .written = kX, .read = kY, .read_gradient = true},
};

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kRmsNorm,
    .name = "rms_norm",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .may_overwrite = kMayOverwrite,
    .row_slots = Reads(kX, kY, kRstd),
};

}  // namespace ebb::rms_norm
