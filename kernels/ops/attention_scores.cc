// Description of attention_scores.
#include "kernels/ops/attention_scores.h"

#include "kernels/ops/attention_shape.h"
#include "kernels/ops/type_check.h"
#include "kernels/ops/workspace.h"
#include "kernels/status.h"

namespace ebb::attention_scores {
namespace {

constexpr SlotDef kSlots[] = {
    {"q", Role::kInput, Reads(kK)},
    {"k", Role::kInput, Reads(kQ)},
    {"scores", Role::kOutput, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs& attrs, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckHeads(kDef, attrs));
  EBB_RETURN_IF_ERROR(CheckHeadRows(kDef, attrs, types, kQ, attrs.num_heads));
  const AttentionShape shape = ShapeFromQuery(attrs, types[kQ]);
  EBB_RETURN_IF_ERROR(CheckType(kDef, types, kK, shape.KeyType()));
  types[kScores] = shape.ScoresType();
  return absl::OkStatus();
}

int64_t ProductFlops(const OpAttrs& attrs, Types types, uint32_t bound) {
  const int num_products =
      bound == 0 ? 1 : HasSlot(bound, kQ) + HasSlot(bound, kK);
  return num_products * ShapeFromQuery(attrs, types[kQ]).product_flops();
}

int64_t ForwardFlops(const OpAttrs& attrs, Types types) {
  // 1 an element: the division by sqrt(W).
  return ProductFlops(attrs, types, 0) + types[kScores].num_elements();
}

int64_t BackwardFlops(const OpAttrs& attrs, Types types, uint32_t bound) {
  if (bound == 0) return 0;
  // dscores / sqrt(W) is shared.
  return ProductFlops(attrs, types, bound) + types[kScores].num_elements();
}

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kAttentionScores,
    .name = "attention_scores",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .workspace_bytes = AttentionScoresWorkspaceBytes,
    .product_flops = ProductFlops,
    .is_product = true,
};

}  // namespace ebb::attention_scores
