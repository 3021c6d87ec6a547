// Description of position_embedding.
#include "kernels/ops/position_embedding.h"

#include "absl/strings/str_cat.h"
#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::position_embedding {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kInput, Reads(), /*optional=*/false,
     /*grad_passes_through=*/true},
    {"weight", Role::kParam, Reads()},
    {"y", Role::kOutput, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs& attrs, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kX, 2));
  EBB_RETURN_IF_ERROR(CheckSequences(kDef, attrs, types, kX));
  EBB_RETURN_IF_ERROR(CheckRank(kDef, types, kWeight, types[kX].dtype, 2));
  const int64_t width = types[kX].dims[1];
  if (types[kWeight].dims[0] < attrs.seq_len ||
      types[kWeight].dims[1] != width) {
    return SlotError(
        kDef, kWeight,
        absl::StrCat("at least ", attrs.seq_len, " rows of width ", width),
        types[kWeight]);
  }
  types[kY] = types[kX];
  return absl::OkStatus();
}

int64_t ForwardFlops(const OpAttrs&, Types types) {
  return types[kX].num_elements();
}

int64_t BackwardFlops(const OpAttrs&, Types types, uint32_t bound) {
  return HasSlot(bound, kWeight) ? types[kX].num_elements() : 0;
}

constexpr Overwrite kMayOverwrite[] = {
    {.backward = false, .written = kY, .read = kX, .read_gradient = false},
};

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kPositionEmbedding,
    .name = "position_embedding",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .may_overwrite = kMayOverwrite,
    .row_slots = Reads(kX, kY),
};

}  // namespace ebb::position_embedding
