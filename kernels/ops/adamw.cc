// Description of adamw.
#include "kernels/ops/adamw.h"

#include "absl/strings/str_cat.h"
#include "kernels/ops/no_flops.h"
#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::adamw {
namespace {

constexpr SlotDef kSlots[] = {
    {"param", Role::kState, Reads()},
    {"grad", Role::kState, Reads()},
    {"m", Role::kState, Reads()},
    {"v", Role::kState, Reads()},
    {"scale", Role::kState, Reads()},
    {"weight", Role::kState, Reads(), /*optional=*/true},
};
static_assert(std::size(kSlots) == kNumSlots);

// Checks that value is at least 0, and below 1 if `below_one`.
absl::Status CheckAttribute(const char* name, float value, bool below_one) {
  if (value >= 0 && (!below_one || value < 1)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kDef.name, ": ", name, ": must be ",
                   below_one ? "in [0, 1)" : "at least 0", ", got ", value));
}

absl::Status Infer(const OpAttrs& attrs, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckAttribute("beta1", attrs.beta1, true));
  EBB_RETURN_IF_ERROR(CheckAttribute("beta2", attrs.beta2, true));
  EBB_RETURN_IF_ERROR(CheckAttribute("epsilon", attrs.epsilon, false));
  EBB_RETURN_IF_ERROR(
      CheckAttribute("weight_decay", attrs.weight_decay, false));
  EBB_RETURN_IF_ERROR(
      CheckRank(kDef, types, kParam, DType::kF32, types[kParam].rank));
  for (int slot : {kGrad, kM, kV}) {
    EBB_RETURN_IF_ERROR(CheckType(kDef, types, slot, types[kParam]));
  }
  EBB_RETURN_IF_ERROR(
      CheckType(kDef, types, kWeight, types[kParam].WithDType(DType::kBf16)));
  return CheckType(kDef, types, kScale, {DType::kF64, 1});
}

int64_t ForwardFlops(const OpAttrs&, Types types) {
  // g 1, m 3, v 4, the two corrections 2, root 1, epsilon 1, division 1,
  // decay 2, step 2.
  return 17 * types[kParam].num_elements();
}

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kAdamw,
    .name = "adamw",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = NoGradientFlops,
};

}  // namespace ebb::adamw
