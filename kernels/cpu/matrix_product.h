// Matrix products of linear, on all threads: rows of C are split among them,
// and each runs a primitive that oneDNN made for one thread, so that scratch
// is bounded per thread and no sum is split. The product with a transposed A
// (weight gradients) is one primitive for the whole team.
#pragma once

#include <cstdint>

#include "kernels/cpu/strided_product.h"

namespace ebb::cpu {

// Computes the product with scratch in `workspace` alone. Where oneDNN has no
// kernel that takes its scratch from the caller (before AVX-512; rows that are
// not dense), is slow or wants more than there is, MultiplyStrided does the
// work: an answer that depends on shapes, instruction set, threads and
// `workspace_bytes`, never on the moment. bf16 goes through oneDNN where it has
// instructions for it. Needs StridedProductBytes(dtype) a thread. Primitives
// are made at the calling thread's first call of a shape and kept for its life.
// Throws dnnl::error if one cannot be made or run.
void MultiplyMatrices(const StridedProduct& product, void* workspace,
                      int64_t workspace_bytes);

// Bytes that oneDNN wants for `product`: of one thread with all rows, or of
// the team if A is transposed. -1 where MultiplyStrided does the work. For
// tests.
int64_t OneDnnScratchBytes(const StridedProduct& product);

}  // namespace ebb::cpu
