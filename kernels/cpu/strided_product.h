// Matrix product of one thread over matrices with any strides: what the
// unfused attention ops use on views of q, k and v, and linear wherever
// oneDNN has no kernel that keeps its scratch where it is told to.
#pragma once

#include <cstdint>

#include "kernels/ops/workspace.h"

namespace ebb::cpu {

// C [m, n] (+)= factor * A [m, k] * B [k, n]. An operand that is transposed is
// stored as [k, m] or [n, k]. Strides are distances of stored rows, in
// elements; elements of a stored row are adjacent.
struct StridedProduct {
  int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  int64_t a_stride = 0;
  bool a_transposed = false;
  const float* b = nullptr;
  int64_t b_stride = 0;
  bool b_transposed = false;
  float* c = nullptr;
  int64_t c_stride = 0;
  const float* bias = nullptr;  // [n], added if not null; not with add
  bool add = false;             // to C, else overwrite it
  float factor = 1;
};

// Scratch of one call: a packed block of A and one of B.
constexpr int64_t StridedProductScratchBytes() { return kStridedProductBytes; }

// Computes the product on the calling thread.
void MultiplyStrided(const StridedProduct& product, void* scratch);

}  // namespace ebb::cpu
