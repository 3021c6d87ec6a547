// Description of clip_scale.
#include "kernels/ops/clip_scale.h"

#include "absl/strings/str_cat.h"
#include "kernels/ops/no_flops.h"
#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::clip_scale {
namespace {

constexpr SlotDef kSlots[] = {
    {"total", Role::kState, Reads()},
    {"norm", Role::kState, Reads()},
    {"scale", Role::kState, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs& attrs, std::span<TensorType> types) {
  if (!(attrs.clip >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        kDef.name, ": clip: must be at least 0, got ", attrs.clip));
  }
  for (int slot : {kTotal, kNorm, kScale}) {
    EBB_RETURN_IF_ERROR(CheckType(kDef, types, slot, {DType::kF64, 1}));
  }
  return absl::OkStatus();
}

// Root and division.
int64_t ForwardFlops(const OpAttrs&, Types) { return 2; }

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kClipScale,
    .name = "clip_scale",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = NoGradientFlops,
};

}  // namespace ebb::clip_scale
