// Checks that descriptions share.
#include "kernels/ops/type_check.h"

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace ebb {

std::string TypeText(const TensorType& type) {
  if (!type.bound()) return "nothing";
  std::string text = absl::StrCat(DTypeName(type.dtype), " [");
  for (int dim = 0; dim < type.rank; ++dim) {
    absl::StrAppend(&text, dim > 0 ? ", " : "", type.dims[dim]);
  }
  return text + "]";
}

absl::Status SlotError(const OpDef& op, int slot, absl::string_view expected,
                       const TensorType& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(op.name, ".", op.slots[slot].name, ": expected ", expected,
                   ", got ", TypeText(got)));
}

absl::Status CheckActivation(const OpDef& op, Types types, int slot, int rank) {
  if (types[slot].dtype == DType::kF32 || types[slot].dtype == DType::kBf16) {
    return CheckRank(op, types, slot, types[slot].dtype, rank);
  }
  return SlotError(
      op, slot, absl::StrCat("fp32 or bf16 with ", rank, " dims of at least 1"),
      types[slot]);
}

absl::Status CheckRank(const OpDef& op, Types types, int slot, DType dtype,
                       int rank) {
  const TensorType& type = types[slot];
  bool valid = type.dtype == dtype && type.rank == rank;
  for (int64_t dim : type.dims) valid = valid && dim >= 1;
  if (valid) return absl::OkStatus();
  return SlotError(
      op, slot,
      absl::StrCat(DTypeName(dtype), " with ", rank, " dims of at least 1"),
      type);
}

absl::Status CheckType(const OpDef& op, Types types, int slot,
                       const TensorType& expected) {
  const TensorType& type = types[slot];
  if (type == expected) return absl::OkStatus();
  if (!type.bound() && op.slots[slot].optional) return absl::OkStatus();
  return SlotError(op, slot, TypeText(expected), type);
}

absl::Status CheckSequences(const OpDef& op, const OpAttrs& attrs, Types types,
                            int slot) {
  if (attrs.seq_len < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        op.name, ": seq_len: must be at least 1, got ", attrs.seq_len));
  }
  if (types[slot].dims[0] % attrs.seq_len != 0) {
    return SlotError(
        op, slot,
        absl::StrCat("a multiple of seq_len ", attrs.seq_len, " rows"),
        types[slot]);
  }
  return absl::OkStatus();
}

absl::Status CheckDropout(const OpDef& op, const OpAttrs& attrs) {
  if (attrs.dropout >= 0 && attrs.dropout < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      op.name, ": dropout: must be in [0, 1), got ", attrs.dropout));
}

}  // namespace ebb
