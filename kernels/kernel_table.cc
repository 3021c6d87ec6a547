// Look-up in a kernel table.
#include "kernels/kernel_table.h"

namespace ebb {

const KernelRow* FindKernels(const KernelTable& table, Op op, DType dtype) {
  for (const KernelRow& row : table.rows[static_cast<int>(op)]) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

}  // namespace ebb
