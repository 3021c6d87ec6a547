// One op, described once: plain data that the planner, the lowering, the
// executor, the metrics and the tests all read. Everything else about an op
// (saved activations, cost of recompute, FLOPs of a step) is derived from it.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/op_call.h"
#include "kernels/ops/op.h"
#include "kernels/tensor.h"

namespace ebb {

enum class Role : uint8_t {
  kInput,   // activation, has a gradient
  kIndex,   // token ids, targets, routes: no gradient
  kParam,   // has a gradient
  kOutput,  // has a gradient that backward reads
  kAux,     // made by forward for backward only: no gradient
  kState,   // read and written by update ops: no gradient
};

// A set of slots as bits: Reads(kX, kGain).
constexpr uint32_t Reads() { return 0; }
template <typename... Slot>
constexpr uint32_t Reads(Slot... slots) {
  return ((uint32_t{1} << slots) | ...);
}
// Whether `slot` is in the set.
constexpr bool HasSlot(uint32_t set, int slot) {
  return (set >> slot & 1) != 0;
}

struct SlotDef {
  const char* name;
  Role role;
  // kInput and kParam: the slots that this slot's gradient reads, besides the
  // gradients of the outputs.
  uint32_t grad_reads;
  // May stay unbound (bias).
  bool optional = false;
  // kInput: this slot's gradient *is* the gradient of the op's first output,
  // element for element (residual add): no kernel runs, the two share storage.
  bool grad_passes_through = false;
};

// Storage that a result may take over from something it reads, element by
// element or row by row, when nothing reads that later. Sizes must be equal.
struct Overwrite {
  bool backward;       // which kernel
  int8_t written;      // forward: output slot; backward: input slot whose
                       // gradient is written
  int8_t read;         // slot that is read
  bool read_gradient;  // backward: the gradient of slot `read`, not its value
};

using Types = std::span<const TensorType>;  // indexed by slot

// Type of the gradient of a slot whose value has `type`. Gradients of params
// accumulate in fp32 whatever the params are stored in; those of activations
// are stored as the activations.
constexpr TensorType GradientType(Role role, const TensorType& type) {
  return role == Role::kParam && type.bound() ? type.WithDType(DType::kF32)
                                              : type;
}

struct OpDef {
  Op op;
  const char* name;  // also the metric label, profiler range and dump mnemonic
  std::span<const SlotDef> slots;
  // Checks input and param types, fills output and aux types.
  // Errors: INVALID_ARGUMENT names the slot.
  absl::Status (*infer)(const OpAttrs&, std::span<TensorType>);
  // FLOPs: 2 per multiply-add, 1 per other arithmetic operation of the formula
  // (exp, tanh: 1). Attention counts the full square.
  int64_t (*forward_flops)(const OpAttrs&, Types);
  // Of the gradients in `bound` (bits of slots), shared work once.
  int64_t (*backward_flops)(const OpAttrs&, Types, uint32_t bound);
  // Computed twice inside backward (fused attention). Null: none. Part of
  // neither of the two above.
  int64_t (*inner_recompute_flops)(const OpAttrs&, Types) = nullptr;
  // Upper bound of the scratch of the forward (bound == 0) or backward kernel
  // (bound: gradients asked for); the kernel must live in it. Reads the types
  // of inputs and outputs and the dims of params alone: a param's type may be
  // that of its gradient. Null: none.
  int64_t (*workspace_bytes)(const OpAttrs&, Types, uint32_t bound,
                             const Backend&) = nullptr;
  std::span<const Overwrite> may_overwrite = {};
  // Of forward_flops and backward_flops, what matrix products do. Null: none.
  // MFU and product shares take these alone. `bound` 0: forward.
  int64_t (*product_flops)(const OpAttrs&, Types, uint32_t bound) = nullptr;
  // Slots with a row a token where the op treats every row alone (0: it does
  // not): row n of outputs and of input gradients depends on row n of these and
  // on whole params. The kernel may then be given some rows, with row_offset
  // the first, and gives the same bits (kernels/row_loop.h).
  uint32_t row_slots = 0;
  // Element (n, d) of the written row slots depends on element (n, d) of the
  // others alone: the kernel may be given some rows and columns, as the tail of
  // a product.
  bool is_elementwise = false;
  // The kernels run OpCall::tail on the blocks of the output and, backward, of
  // the gradient of the first slot, one kInput.
  bool takes_tail = false;
  // The output comes from matrix products, or is theirs turned and takes its
  // place (rope, whose input nobody reads later): policy `cheap` keeps it.
  bool is_product = false;

  int num_slots() const { return static_cast<int>(slots.size()); }
};

// The description of `op`.
const OpDef& GetOpDef(Op op);

}  // namespace ebb
