// Description of attention_context.
#include "kernels/ops/attention_context.h"

#include "kernels/ops/attention_shape.h"
#include "kernels/ops/type_check.h"
#include "kernels/ops/workspace.h"
#include "kernels/status.h"

namespace ebb::attention_context {
namespace {

constexpr SlotDef kSlots[] = {
    {"probs", Role::kInput, Reads(kV)},
    {"v", Role::kInput, Reads(kProbs)},
    {"y", Role::kOutput, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs& attrs, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckHeads(kDef, attrs));
  EBB_RETURN_IF_ERROR(
      CheckHeadRows(kDef, attrs, types, kV, attrs.num_kv_heads));
  const AttentionShape shape = ShapeFromKey(attrs, types[kV]);
  EBB_RETURN_IF_ERROR(CheckType(kDef, types, kProbs, shape.ScoresType()));
  types[kY] = shape.QueryType();
  return absl::OkStatus();
}

int64_t ProductFlops(const OpAttrs& attrs, Types types, uint32_t bound) {
  const int num_products =
      bound == 0 ? 1 : HasSlot(bound, kProbs) + HasSlot(bound, kV);
  return num_products * ShapeFromKey(attrs, types[kV]).product_flops();
}

int64_t ForwardFlops(const OpAttrs& attrs, Types types) {
  return ProductFlops(attrs, types, 0);
}

int64_t BackwardFlops(const OpAttrs& attrs, Types types, uint32_t bound) {
  return bound == 0 ? 0 : ProductFlops(attrs, types, bound);
}

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kAttentionContext,
    .name = "attention_context",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .workspace_bytes = AttentionContextWorkspaceBytes,
    .product_flops = ProductFlops,
    .is_product = true,
};

}  // namespace ebb::attention_context
