// Description of dropout.
#include "kernels/ops/dropout.h"

#include "absl/strings/str_cat.h"
#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::dropout {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kInput, Reads()},
    {"y", Role::kOutput, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs& attrs, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckDropout(kDef, attrs));
  if (types[kX].rank == 4) {
    EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kX, 4));
    if (types[kX].dims[1] != attrs.num_heads ||
        types[kX].dims[2] != attrs.seq_len) {
      return SlotError(kDef, kX,
                       absl::StrCat(attrs.num_heads, " heads of ",
                                    attrs.seq_len, " queries"),
                       types[kX]);
    }
  } else {
    EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kX, 2));
    EBB_RETURN_IF_ERROR(CheckSequences(kDef, attrs, types, kX));
  }
  types[kY] = types[kX];
  return absl::OkStatus();
}

// One product an element, with 0 or 1 / (1 - dropout).
int64_t ForwardFlops(const OpAttrs&, Types types) {
  return types[kX].num_elements();
}

int64_t BackwardFlops(const OpAttrs&, Types types, uint32_t bound) {
  return HasSlot(bound, kX) ? types[kX].num_elements() : 0;
}

constexpr Overwrite kMayOverwrite[] = {
    {.backward = false, .written = kY, .read = kX, .read_gradient = false},
    {.backward = true, .written = kX, .read = kY, .read_gradient = true},
};

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kDropout,
    .name = "dropout",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .may_overwrite = kMayOverwrite,
    .row_slots = Reads(kX, kY),
};

}  // namespace ebb::dropout
