// Description of attention.
//
// FLOPs are those of the formula over the full square: what scores, softmax,
// dropout and context would count, plus lse. With P the probabilities, backward
// is (Dao 2023, algorithm 2):
//   dv = drop(P)^T dy   dP = drop(dy v^T)   dS = P * (dP - rowsum(dy * y))
//   dq = dS k / sqrt(W)   dk = dS^T q / sqrt(W)
// of which P = exp(q k^T / sqrt(W) - lse) is computed a second time and counts
// as inner recompute.
#include "kernels/ops/attention.h"

#include "kernels/ops/attention_shape.h"
#include "kernels/ops/type_check.h"
#include "kernels/ops/workspace.h"
#include "kernels/status.h"

namespace ebb::attention {
namespace {

constexpr uint32_t kAllReads = Reads(kQ, kK, kV, kY, kLse);
constexpr SlotDef kSlots[] = {
    {"q", Role::kInput, kAllReads}, {"k", Role::kInput, kAllReads},
    {"v", Role::kInput, kAllReads}, {"y", Role::kOutput, Reads()},
    {"lse", Role::kAux, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs& attrs, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckHeads(kDef, attrs));
  EBB_RETURN_IF_ERROR(CheckDropout(kDef, attrs));
  EBB_RETURN_IF_ERROR(CheckHeadRows(kDef, attrs, types, kQ, attrs.num_heads));
  const AttentionShape shape = ShapeFromQuery(attrs, types[kQ]);
  EBB_RETURN_IF_ERROR(CheckType(kDef, types, kK, shape.KeyType()));
  EBB_RETURN_IF_ERROR(CheckType(kDef, types, kV, shape.KeyType()));
  types[kY] = shape.QueryType();
  types[kLse] = {DType::kF32, shape.num_sequences, shape.num_heads,
                 shape.seq_len};
  return absl::OkStatus();
}

int64_t ProductFlops(const OpAttrs& attrs, Types types, uint32_t bound) {
  const bool dq = HasSlot(bound, kQ), dk = HasSlot(bound, kK);
  const int num_products =
      bound == 0 ? 2 : (dq || dk) + dq + dk + HasSlot(bound, kV);
  return num_products * ShapeFromQuery(attrs, types[kQ]).product_flops();
}

int64_t ForwardFlops(const OpAttrs& attrs, Types types) {
  // Score: scaling 1, softmax 4 (see causal_softmax), dropout 1.
  // Row of scores: lse 2.
  const int64_t num_scores = ShapeFromQuery(attrs, types[kQ]).num_scores();
  return ProductFlops(attrs, types, 0) +
         (attrs.dropout > 0 ? 6 : 5) * num_scores +
         2 * types[kLse].num_elements();
}

int64_t BackwardFlops(const OpAttrs& attrs, Types types, uint32_t bound) {
  if (bound == 0) return 0;
  const int64_t num_scores = ShapeFromQuery(attrs, types[kQ]).num_scores();
  int64_t flops = ProductFlops(attrs, types, bound);
  if (HasSlot(bound, kQ) || HasSlot(bound, kK)) {
    // rowsum(dy * y); dS 2 and its scaling 1; dropout of dP 1.
    flops +=
        2 * types[kY].num_elements() + (attrs.dropout > 0 ? 4 : 3) * num_scores;
  }
  // Dropout of P.
  if (HasSlot(bound, kV) && attrs.dropout > 0) flops += num_scores;
  return flops;
}

int64_t InnerRecomputeFlops(const OpAttrs& attrs, Types types) {
  // The score product; scaling, subtraction of lse and exp.
  const AttentionShape shape = ShapeFromQuery(attrs, types[kQ]);
  return shape.product_flops() + 3 * shape.num_scores();
}

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kAttention,
    .name = "attention",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .inner_recompute_flops = InnerRecomputeFlops,
    .workspace_bytes = AttentionWorkspaceBytes,
    .product_flops = ProductFlops,
    .is_product = true,
};

}  // namespace ebb::attention
