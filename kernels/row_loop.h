// Several ops that treat every row alone, run as one: a block of rows goes
// through all of them while it is in the cache, then the next block. And the
// tail of a matrix product: an op that treats every element alone, run on each
// block of the result as it is finished. The kernels are the ops' own, called
// on some rows, of a tail on some columns, so a fused sequence gives the bits
// of the sequence. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/op_call.h"
#include "kernels/tensor.h"

namespace ebb {

// Rows of a tensor as a loop counts them: of [B, H, T, T] the last dim is a
// row, of all others everything but the first.
constexpr int64_t NumLoopRows(const TensorType& type) {
  return type.rank == 4 ? type.dims[0] * type.dims[1] * type.dims[2]
                        : type.dims[0];
}

// `rows` rows of a tensor of this type: [1, 1, rows, T] of rank 4.
constexpr TensorType WithLoopRows(TensorType type, int64_t rows) {
  if (type.rank == 4) {
    type.dims[0] = type.dims[1] = 1;
    type.dims[2] = rows;
  } else {
    type.dims[0] = rows;
  }
  return type;
}

// A slot, or the gradient of one, that a loop cuts into rows.
struct RowOperand {
  int8_t slot = 0;
  bool gradient = false;
  // Nobody outside the loop reads it: it lies at this offset of a thread's
  // scratch and has no storage. -1: it has.
  int64_t scratch_offset = -1;
};

// One op of a loop, or a tail, whose operands all have storage. `call` binds
// all rows; copies of it are cut.
struct RowStage {
  Kernel kernel = nullptr;
  const OpCall* call = nullptr;
  int num_slots = 0;
  std::span<const RowOperand> rows;
  // Gradients of params, which sum over rows: computed by a call of their own
  // on all rows before the loop begins. First stage only.
  uint32_t whole_gradients = 0;
  uint32_t row_gradients = 0;  // of inputs, computed row by row
};

struct RowLoop {
  std::span<const RowStage> stages;
  int64_t num_rows = 0;
  int64_t slice_rows = 0;  // of a block
  std::byte* scratch = nullptr;
  int64_t thread_scratch_bytes = 0;
};

// More slots than any op of a loop has.
constexpr int kMostRowSlots = 16;

}  // namespace ebb
