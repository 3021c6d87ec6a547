// Sizes that the attention ops share, and their checks.
#include "kernels/ops/attention_shape.h"

#include "absl/strings/str_cat.h"
#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb {
namespace {

AttentionShape MakeShape(const OpAttrs& attrs, const TensorType& type,
                         int num_heads) {
  return {.num_sequences = type.dims[0] / attrs.seq_len,
          .seq_len = attrs.seq_len,
          .num_heads = attrs.num_heads,
          .num_kv_heads = attrs.num_kv_heads,
          .head_width = type.dims[1] / num_heads,
          .dtype = type.dtype};
}

}  // namespace

AttentionShape ShapeFromQuery(const OpAttrs& attrs, const TensorType& type) {
  return MakeShape(attrs, type, attrs.num_heads);
}

AttentionShape ShapeFromKey(const OpAttrs& attrs, const TensorType& type) {
  return MakeShape(attrs, type, attrs.num_kv_heads);
}

absl::Status CheckHeads(const OpDef& op, const OpAttrs& attrs) {
  if (attrs.num_heads < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        op.name, ": num_heads: must be at least 1, got ", attrs.num_heads));
  }
  if (attrs.num_kv_heads < 1 || attrs.num_heads % attrs.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(op.name, ": num_kv_heads: must divide num_heads ",
                     attrs.num_heads, ", got ", attrs.num_kv_heads));
  }
  return absl::OkStatus();
}

absl::Status CheckHeadRows(const OpDef& op, const OpAttrs& attrs, Types types,
                           int slot, int num_heads) {
  EBB_RETURN_IF_ERROR(CheckActivation(op, types, slot, 2));
  EBB_RETURN_IF_ERROR(CheckSequences(op, attrs, types, slot));
  if (types[slot].dims[1] % num_heads != 0) {
    return SlotError(
        op, slot,
        absl::StrCat("a width that is a multiple of ", num_heads, " heads"),
        types[slot]);
  }
  return absl::OkStatus();
}

}  // namespace ebb
