// Cases of every op: shapes, attributes and where the slots lie. Values are
// drawn from a fixed generator, so a case is the same in every run.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/op_call.h"
#include "kernels/ops/op_def.h"
#include "kernels/tensor.h"

namespace ebb {

struct OpCase {
  // A slot that is a column range of a wider buffer. All such slots of a case
  // lie in one buffer, their gradients in another.
  struct View {
    int64_t row_stride = 0;  // elements; 0: the slot is dense, on its own
    int64_t column = 0;      // first element within a row
  };

  Op op = Op::kNumOps;
  std::string name;  // "linear x fp32 [3, 17] ..."
  OpAttrs attrs;
  std::vector<TensorType> types;  // by slot, outputs inferred
  std::vector<View> views;        // by slot
  StepScalars scalars;
  uint64_t value_key = 0;
  int64_t row_offset = 0;

  double input_scale = 1;    // inputs lie in [-input_scale, input_scale]
  bool pad_targets = false;  // some targets are -1
  // Slots whose elements all have one value, in place of drawn ones; may be
  // infinite or NaN.
  std::vector<std::pair<int, double>> constants;
};

// The cases of `op`, at least one, in a job of this precision (fp32 or bf16):
// activations and params have it, all else is the same in both.
std::vector<OpCase> OpCases(Op op, DType precision = DType::kF32);

// Values by slot: drawn for inputs, params, indices and states, empty for
// outputs and for slots that are not bound. Representable in the slot's type.
std::vector<std::vector<double>> DrawSlots(const OpCase& op_case);

// Values by slot of the gradients before a backward call: drawn for outputs
// (the gradient that arrives) and for params (what has accumulated), empty for
// the others. cross_entropy's losses have none.
std::vector<std::vector<double>> DrawGradients(const OpCase& op_case);

// The slots whose gradient a backward kernel of `op` computes: of inputs and
// params, but those that pass through, of ops that have an output.
uint32_t KernelGradients(const OpDef& op);

}  // namespace ebb
