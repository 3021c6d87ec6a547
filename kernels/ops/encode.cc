// Description of encode.
#include "kernels/ops/encode.h"

#include "absl/strings/str_cat.h"
#include "kernels/ops/no_flops.h"
#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::encode {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kInput, Reads()},
    {"code", Role::kAux, Reads()},
    {.name = "scale", .role = Role::kAux, .grad_reads = 0, .optional = true},
    {"error", Role::kState, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs& attrs, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kX, types[kX].rank));
  const bool is_bf16 = attrs.result == DType::kBf16;
  if (!is_bf16 && attrs.result != DType::kF8E4M3) {
    return absl::InvalidArgumentError(
        absl::StrCat(kDef.name, ": expected a result of bf16 or fp8_e4m3, got ",
                     DTypeName(attrs.result)));
  }
  if (is_bf16 && types[kX].dtype != DType::kF32) {
    return SlotError(kDef, kX, "fp32, which bf16 is narrower than", types[kX]);
  }
  types[kCode] = types[kX].WithDType(attrs.result);
  types[kScale] = is_bf16 ? TensorType() : ScaleType(types[kX]);
  return CheckType(kDef, types, kError, {DType::kF64, kNumErrors});
}

// Of fp8_e4m3 a product with the scale, and a second one to decode; the error
// 1, two squares and their sums 4.
int64_t ForwardFlops(const OpAttrs& attrs, Types types) {
  const int64_t scaling = attrs.result == DType::kBf16 ? 0 : 2;
  return (5 + scaling) * types[kX].num_elements();
}

// The errors of each row, which are added up in order.
int64_t WorkspaceBytes(const OpAttrs&, Types types, uint32_t, const Backend&) {
  return NumRows(types[kX]) * kNumErrors * DTypeBytes(DType::kF64);
}

}  // namespace

TensorType ScaleType(const TensorType& x) {
  TensorType scale = x.WithDType(DType::kF32);
  scale.dims[x.rank - 1] = 1;
  if (scale.rank > 1) --scale.rank;
  return scale;
}

constinit const OpDef kDef = {
    .op = Op::kEncode,
    .name = "encode",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = NoGradientFlops,
    .workspace_bytes = WorkspaceBytes,
};

}  // namespace ebb::encode
