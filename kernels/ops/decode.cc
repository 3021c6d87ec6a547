// Description of decode.
#include "kernels/ops/decode.h"

#include "kernels/ops/encode.h"
#include "kernels/ops/no_flops.h"
#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::decode {
namespace {

constexpr SlotDef kSlots[] = {
    {"code", Role::kState, Reads()},
    {.name = "scale", .role = Role::kState, .grad_reads = 0, .optional = true},
    {"x", Role::kAux, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs& attrs, std::span<TensorType> types) {
  const bool is_bf16 = types[kCode].dtype == DType::kBf16;
  EBB_RETURN_IF_ERROR(CheckRank(kDef, types, kCode,
                                is_bf16 ? DType::kBf16 : DType::kF8E4M3,
                                types[kCode].rank));
  types[kX] = types[kCode].WithDType(attrs.result);
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kX, types[kX].rank));
  const TensorType scale =
      is_bf16 ? TensorType() : encode::ScaleType(types[kX]);
  if (types[kScale] == scale) return absl::OkStatus();
  return SlotError(kDef, kScale, TypeText(scale), types[kScale]);
}

int64_t ForwardFlops(const OpAttrs&, Types types) {
  return types[kScale].bound() ? types[kX].num_elements() : 0;
}

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kDecode,
    .name = "decode",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = NoGradientFlops,
};

}  // namespace ebb::decode
