// The specification of every op: forward and backward in double precision,
// plain loops over dense values, no cleverness. All backends are held to it.
//
// A backward reference takes the shape of every gradient from what that
// gradient reads, from the gradients that arrive and from its own type, never
// from another slot: what is not declared as read may have no type.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/op_call.h"
#include "kernels/ops/op.h"
#include "kernels/tensor.h"

namespace ebb::reference {

// The elements of a value, row-major and dense; empty: not bound. Indices are
// whole numbers.
using Elements = std::vector<double>;

struct Call {
  OpAttrs attrs;
  std::vector<TensorType> types;  // by slot
  std::vector<Elements> slots;    // by slot
  std::vector<Elements> grads;    // by slot; backward only: those that arrive
                                  // and those to compute, sized
  StepScalars scalars;
  uint64_t value_key = 0;
  int64_t row_offset = 0;
};

// As in OpCall: forward reads and writes `slots`; backward writes those
// gradients of inputs and params that are bound.
using Kernel = void (*)(Call&);

struct Kernels {
  Kernel forward = nullptr;
  Kernel backward = nullptr;  // null: no gradient to compute
};

const Kernels& GetKernels(Op op);

// Sizes outputs and aux slots by their types, then runs the forward kernel.
void RunForward(Op op, Call& call);

}  // namespace ebb::reference
