// The reference as a kernel table of fp32 and bf16.
#include "kernels/testing/reference_table.h"

#include <array>
#include <utility>

#include "kernels/ops/op_def.h"
#include "kernels/testing/reference.h"
#include "kernels/testing/tensor_elements.h"

namespace ebb {
namespace {

reference::Call ReadCall(const OpDef& op, const OpCall& call) {
  const int num_slots = op.num_slots();
  reference::Call read = {.attrs = *call.attrs,
                          .types = std::vector<TensorType>(num_slots),
                          .slots = std::vector<reference::Elements>(num_slots),
                          .grads = std::vector<reference::Elements>(num_slots),
                          .scalars = *call.scalars,
                          .value_key = call.value_key,
                          .row_offset = call.row_offset};
  for (int slot = 0; slot < num_slots; ++slot) {
    read.types[slot] = call.slots[slot].type;
    read.slots[slot] = ReadElements(call.slots[slot]);
    if (call.grads == nullptr || !call.grads[slot].bound()) continue;
    read.types[slot] = call.grads[slot].type;
    read.grads[slot] = ReadElements(call.grads[slot]);
  }
  return read;
}

template <Op op>
void Forward(const OpCall& call, Stream) {
  const OpDef& def = GetOpDef(op);
  reference::Call result = ReadCall(def, call);
  reference::RunForward(op, result);
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    const Role role = def.slots[slot].role;
    if (!call.slots[slot].bound()) continue;
    if (role == Role::kOutput || role == Role::kAux || role == Role::kState) {
      WriteElements(result.slots[slot], call.slots[slot]);
    }
  }
}

template <Op op>
void Backward(const OpCall& call, Stream) {
  const OpDef& def = GetOpDef(op);
  reference::Call result = ReadCall(def, call);
  reference::GetKernels(op).backward(result);
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    const Role role = def.slots[slot].role;
    if (!call.grads[slot].bound()) continue;
    if (role == Role::kInput || role == Role::kParam) {
      WriteElements(result.grads[slot], call.grads[slot]);
    }
  }
}

// The same kernels in both precisions: they look at the types.
template <Op op>
std::array<KernelRow, 2> RowsOf() {
  const bool has_backward = reference::GetKernels(op).backward != nullptr;
  KernelRow row = {.dtype = DType::kF32,
                   .forward = Forward<op>,
                   .backward = has_backward ? Backward<op> : nullptr};
  KernelRow bf16 = row;
  bf16.dtype = DType::kBf16;
  return {row, bf16};
}

template <int... op>
KernelTable MakeTable(std::integer_sequence<int, op...>) {
  static const std::array<std::array<KernelRow, 2>, kNumOps> rows = {
      RowsOf<static_cast<Op>(op)>()...};
  return {.rows = {std::span<const KernelRow>(rows[op])...}};
}

}  // namespace

const KernelTable& ReferenceKernelTable() {
  static const KernelTable table =
      MakeTable(std::make_integer_sequence<int, kNumOps>());
  return table;
}

}  // namespace ebb
