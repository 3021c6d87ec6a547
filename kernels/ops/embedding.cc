// Description of embedding.
#include "kernels/ops/embedding.h"

#include "kernels/ops/no_flops.h"
#include "kernels/ops/type_check.h"
#include "kernels/status.h"

namespace ebb::embedding {
namespace {

constexpr SlotDef kSlots[] = {
    {"tokens", Role::kIndex, Reads()},
    {"weight", Role::kParam, Reads(kTokens)},
    {"y", Role::kOutput, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs&, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckRank(kDef, types, kTokens, DType::kI32, 1));
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kWeight, 2));
  types[kY] = {types[kWeight].dtype, types[kTokens].dims[0],
               types[kWeight].dims[1]};
  return absl::OkStatus();
}

int64_t BackwardFlops(const OpAttrs&, Types types, uint32_t bound) {
  return HasSlot(bound, kWeight) ? types[kY].num_elements() : 0;
}

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kEmbedding,
    .name = "embedding",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = NoFlops,
    .backward_flops = BackwardFlops,
    .row_slots = Reads(kTokens, kY),
};

}  // namespace ebb::embedding
