// Description of rope.
#include "kernels/ops/rope.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/ops/attention_shape.h"
#include "kernels/ops/type_check.h"
#include "kernels/ops/workspace.h"
#include "kernels/status.h"

namespace ebb::rope {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kInput, Reads()},
    {"y", Role::kOutput, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs& attrs, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckHeads(kDef, attrs));
  if (!(attrs.rope_theta > 0 && std::isfinite(attrs.rope_theta))) {
    return absl::InvalidArgumentError(absl::StrCat(
        kDef.name, ": rope_theta: must be above 0, got ", attrs.rope_theta));
  }
  const int num_heads = attrs.num_heads + 2 * attrs.num_kv_heads;
  EBB_RETURN_IF_ERROR(CheckHeadRows(kDef, attrs, types, kX, num_heads));
  if (types[kX].dims[1] / num_heads % 2 != 0) {
    return SlotError(kDef, kX,
                     absl::StrCat(num_heads, " heads of an even width"),
                     types[kX]);
  }
  types[kY] = types[kX];
  return absl::OkStatus();
}

// A turned pair is four products and two sums; angle, cosine and sine are 3 a
// row and pair of a head, for all heads.
int64_t Flops(const OpAttrs& attrs, Types types) {
  const int64_t num_rows = types[kX].dims[0];
  const int64_t head_width =
      types[kX].dims[1] / (attrs.num_heads + 2 * attrs.num_kv_heads);
  return num_rows * head_width / 2 *
         (6 * (attrs.num_heads + attrs.num_kv_heads) + 3);
}

int64_t BackwardFlops(const OpAttrs& attrs, Types types, uint32_t bound) {
  return HasSlot(bound, kX) ? Flops(attrs, types) : 0;
}

constexpr Overwrite kMayOverwrite[] = {
    {.backward = false, .written = kY, .read = kX, .read_gradient = false},
    {.backward = true, .written = kX, .read = kY, .read_gradient = true},
};

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kRope,
    .name = "rope",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = Flops,
    .backward_flops = BackwardFlops,
    .workspace_bytes = RopeWorkspaceBytes,
    .may_overwrite = kMayOverwrite,
    .is_product = true,
};

}  // namespace ebb::rope
