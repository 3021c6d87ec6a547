// Holds the kernels of a backend to the double-precision reference. One suite
// for all backends: a backend's test calls RunOpCases for every op.
//
// Every case checks, for the forward kernel and for the backward kernel with
// every subset of gradients:
// - results within 1e-5 of the largest magnitude of the reference's (double
//   slots: 1e-12; bf16: one rounding of the element more); params' gradients
//   accumulate, inputs' overwrite;
// - slots and gradients that the description does not declare are given as
//   default-constructed tensors (null, no type): a kernel that needs one
//   crashes, and takes shapes from what it was given;
// - what is only read keeps its bits, and so do the bytes around every storage
//   and around the workspace, which has exactly workspace_bytes();
// - a second run, with other garbage in results and workspace, gives equal
//   bits;
// - each overwrite that the description allows gives the bits of a run without.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/kernel_table.h"
#include "kernels/ops/op.h"

namespace ebb {

// Runs the cases of one op in a job of `precision` (fp32 or bf16) with that row
// of `table`. Host memory only. Returns one line a failure: none means that the
// kernels are right.
std::vector<std::string> RunOpCases(Op op, const KernelTable& table,
                                    const Backend& backend,
                                    DType precision = DType::kF32);

}  // namespace ebb
