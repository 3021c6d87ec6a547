// Description of swiglu.
#include "kernels/ops/swiglu.h"

#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::swiglu {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kInput, Reads(kX)},
    {"y", Role::kOutput, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs&, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kX, 2));
  const auto [rows, width, unused_2, unused_3] = types[kX].dims;
  if (width % 2 != 0) {
    return SlotError(kDef, kX, "an even width, gate and up", types[kX]);
  }
  types[kY] = {types[kX].dtype, rows, width / 2};
  return absl::OkStatus();
}

int64_t ForwardFlops(const OpAttrs&, Types types) {
  // exp 1, sum 1, quotient 1, the two products 2.
  return 5 * types[kY].num_elements();
}

int64_t BackwardFlops(const OpAttrs&, Types types, uint32_t bound) {
  // With s = 1 / (1 + exp(-gate)) and silu = gate * s:
  //   dup = dy * silu   dgate = dy * up * s * (1 + gate * (1 - s))
  // s 3, silu 1, dup 1; 1 - s 1, its product 1, sum 1, the three products 3.
  return HasSlot(bound, kX) ? 11 * types[kY].num_elements() : 0;
}

constexpr Overwrite kMayOverwrite[] = {
    {.backward = true, .written = kX, .read = kX, .read_gradient = false},
};

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kSwiglu,
    .name = "swiglu",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .may_overwrite = kMayOverwrite,
    .row_slots = Reads(kX, kY),
};

}  // namespace ebb::swiglu
