// Description of linear.
#include "kernels/ops/linear.h"

#include "kernels/ops/type_check.h"
#include "kernels/ops/workspace.h"
#include "kernels/status.h"

namespace ebb::linear {
namespace {

constexpr SlotDef kSlots[] = {
    {"x", Role::kInput, Reads(kWeight)},
    {"weight", Role::kParam, Reads(kX)},
    {"bias", Role::kParam, Reads(), /*optional=*/true},
    {"y", Role::kOutput, Reads()},
};
static_assert(std::size(kSlots) == kNumSlots);

absl::Status Infer(const OpAttrs&, std::span<TensorType> types) {
  EBB_RETURN_IF_ERROR(CheckActivation(kDef, types, kX, 2));
  const DType dtype = types[kX].dtype;
  EBB_RETURN_IF_ERROR(CheckRank(kDef, types, kWeight, dtype, 2));
  const int64_t num_outputs = types[kWeight].dims[0];
  EBB_RETURN_IF_ERROR(
      CheckType(kDef, types, kWeight, {dtype, num_outputs, types[kX].dims[1]}));
  EBB_RETURN_IF_ERROR(CheckType(kDef, types, kBias, {dtype, num_outputs}));
  types[kY] = {dtype, types[kX].dims[0], num_outputs};
  return absl::OkStatus();
}

// 2 N I O, of the product as of either of its gradients.
int64_t OneProductFlops(Types types) {
  return 2 * types[kX].dims[0] * types[kWeight].num_elements();
}

int64_t BiasFlops(Types types) {
  return types[kX].dims[0] * types[kWeight].dims[0];
}

int64_t ProductFlops(const OpAttrs&, Types types, uint32_t bound) {
  const int num_products =
      bound == 0 ? 1 : HasSlot(bound, kX) + HasSlot(bound, kWeight);
  return num_products * OneProductFlops(types);
}

int64_t ForwardFlops(const OpAttrs& attrs, Types types) {
  return ProductFlops(attrs, types, 0) +
         (types[kBias].bound() ? BiasFlops(types) : 0);
}

int64_t BackwardFlops(const OpAttrs& attrs, Types types, uint32_t bound) {
  if (bound == 0) return 0;
  return ProductFlops(attrs, types, bound) +
         (HasSlot(bound, kBias) ? BiasFlops(types) : 0);
}

}  // namespace

constinit const OpDef kDef = {
    .op = Op::kLinear,
    .name = "linear",
    .slots = kSlots,
    .infer = Infer,
    .forward_flops = ForwardFlops,
    .backward_flops = BackwardFlops,
    .workspace_bytes = LinearWorkspaceBytes,
    .product_flops = ProductFlops,
    .takes_tail = true,
    .is_product = true,
};

}  // namespace ebb::linear
