// Description of layer_norm.
#include "kernels/ops/layer_norm.h"

#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::layer_norm {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kInput, Reads(kX, kGain, kMean, kRstd)},
    {"gain", Role::kParam, Reads(kX, kMean, kRstd)},
    {"bias", Role::kParam, Reads(), /*optional=*/true},
    {"y", Role::kOutput, Reads()},
    {"mean", Role::kAux, Reads()},
    {"rstd", Role::kAux, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs& attrs, std::span<TensorType> types) {
  if (!(attrs.epsilon >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        kDef.name, ": epsilon: must be at least 0, got ", attrs.epsilon));
  }
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kX, 2));
  const int64_t num_rows = types[kX].dims[0];
  const TensorType param(types[kX].dtype, types[kX].dims[1]);
  EBB_RETURN_IF_ERROR(CheckType(kDef, types, kGain, param));
  EBB_RETURN_IF_ERROR(CheckType(kDef, types, kBias, param));
  types[kY] = types[kX];
  types[kMean] = {DType::kF32, num_rows};
  types[kRstd] = {DType::kF32, num_rows};
  return absl::OkStatus();
}

int64_t ForwardFlops(const OpAttrs&, Types types) {
  // Element: sum 1, centring 1, sum of squares 2, scaling 1, gain 1, bias 1.
  // Row: two divisions by D, epsilon, root, reciprocal.
  return (types[kBias].bound() ? 7 : 6) * types[kX].num_elements() +
         5 * types[kX].dims[0];
}

int64_t BackwardFlops(const OpAttrs&, Types types, uint32_t bound) {
  const int64_t num_elements = types[kX].num_elements();
  int64_t flops = 0;
  // xhat = (x - mean) * rstd, shared by both gradients that read it.
  if (HasSlot(bound, kX) || HasSlot(bound, kGain)) flops += 2 * num_elements;
  // With g = dy * gain: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)).
  // Element: g 1, sums 1 and 2, subtractions 1 and 2, scaling 1.
  // Row: two divisions by D.
  if (HasSlot(bound, kX)) flops += 8 * num_elements + 2 * types[kX].dims[0];
  if (HasSlot(bound, kGain)) flops += 2 * num_elements;
  if (HasSlot(bound, kBias)) flops += num_elements;
  return flops;
}

constexpr Overwrite kMayOverwrite[] = {
    {.backward = true, .written = kX, .read = kY, .read_gradient = true},
};

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kLayerNorm,
    .name = "layer_norm",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .may_overwrite = kMayOverwrite,
    .row_slots = Reads(kX, kY, kMean, kRstd),
};

}  // namespace ebb::layer_norm
