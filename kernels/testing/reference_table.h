// The reference as a kernel table of fp32 and bf16: every op through the
// double-precision reference, rounded once at the end. Slow; for tests that
// need kernels but not those of a backend.
#pragma once

#include "kernels/kernel_table.h"

namespace ebb {

const KernelTable& ReferenceKernelTable();

}  // namespace ebb
