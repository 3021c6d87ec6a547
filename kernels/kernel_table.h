// Which kernels a backend has: one row an op, with an explicit null where a
// kernel is missing. `ebb-worker --describe` prints it; the executor checks a
// program against it before the first step.
#pragma once

#include <array>
#include <span>

#include "kernels/op_call.h"
#include "kernels/ops/op.h"

namespace ebb {

struct KernelRow {
  DType dtype = DType::kNone;  // of the job's activations (its precision),
                               // also for ops that see none of them
  Kernel forward = nullptr;    // also the update ops' only kernel
  Kernel backward = nullptr;   // null where no slot has a gradient to compute
};

// Rows of one backend, indexed by op; an op has one row a dtype it takes.
struct KernelTable {
  std::array<std::span<const KernelRow>, kNumOps> rows;
};

// Returns the row for (op, dtype) or null.
const KernelRow* FindKernels(const KernelTable& table, Op op, DType dtype);

const KernelTable& CpuKernelTable();   // kernels/cpu
const KernelTable& CudaKernelTable();  // kernels/cuda; empty in the stub

}  // namespace ebb
