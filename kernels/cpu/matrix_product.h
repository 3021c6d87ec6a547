// Matrix products of linear on all threads, which take parts of the result: no
// sum is split. bf16 goes through oneDNN on machines with instructions for it:
// a primitive a thread, one for the team where A is transposed (weight
// gradients). All else is MultiplyStrided's: it keeps to its scratch, allocates
// nothing, gives the same bits however the result is cut, and is the faster
// one.
#pragma once

#include <cstdint>

#include "kernels/cpu/strided_product.h"

namespace ebb::cpu {

// Computes the product with scratch in `workspace` alone: at least what
// StridedSizes says a thread. Which way is taken depends on shapes,
// instruction set, threads and `workspace_bytes`, never on the moment.
// Primitives are made at the calling thread's first call of a shape and kept
// for its life. Throws dnnl::error if one cannot be made or run.
void MultiplyMatrices(const StridedProduct& product, void* workspace,
                      int64_t workspace_bytes);

// Bytes that oneDNN wants for `product`: of one thread with all rows, or of
// the team if A is transposed. -1 where it has no part in it. For tests.
int64_t OneDnnScratchBytes(const StridedProduct& product);

}  // namespace ebb::cpu
