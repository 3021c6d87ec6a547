// Matrix product of one thread over matrices with any strides: what the
// unfused attention ops use on views of q, k and v, and linear on parts of its
// result.
#pragma once

#include <cstdint>

#include "kernels/ops/workspace.h"
#include "kernels/row_loop.h"
#include "kernels/tensor.h"

namespace ebb::cpu {

// C [m, n] (+)= factor * sum of terms A [m, k] * B [k, n]. An operand that is
// transposed is stored as [k, m] or [n, k]. Strides are distances of stored
// rows, in elements; elements of a stored row are adjacent. The sum is formed
// in fp32, term by term, and rounded once where C is bf16.
struct StridedProduct {
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kF32;  // of A, B and bias: fp32 or bf16
  const void* a = nullptr;
  int64_t a_stride = 0;
  bool a_transposed = false;
  const void* b = nullptr;
  int64_t b_stride = 0;
  bool b_transposed = false;
  DType c_dtype = DType::kF32;  // bf16 only where dtype is and not with add
  void* c = nullptr;
  int64_t c_stride = 0;
  const void* bias = nullptr;  // [n], added if not null; not with add
  bool add = false;            // to C, else overwrite it
  float factor = 1;
  // Terms of the sum, whose operands lie so many elements apart.
  int64_t num_terms = 1;
  int64_t a_term_stride = 0;
  int64_t b_term_stride = 0;
  // Runs on each block of C as it is finished (null: nothing), and where C lies
  // in the result that it counts from.
  const RowStage* tail = nullptr;
  int64_t first_row = 0, first_column = 0;
};

// Computes the product on the calling thread, in the scratch that
// StridedSizes (kernels/ops/workspace.h) says.
void MultiplyStrided(const StridedProduct& product, void* scratch);

}  // namespace ebb::cpu
