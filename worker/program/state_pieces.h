// Parameters outside the layers may be larger than all of a layer. Where state
// lies off the device, they and what belongs to them are copied in pieces of
// rows.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"
#include "worker/program/program.h"

namespace ebb {

// Rows first..first + count - 1 of a parameter.
struct PieceRows {
  int number = 0;  // of the piece
  int64_t first = 0;
  int64_t count = 0;

  TensorType TypeOf(TensorType whole) const {
    whole.dims[0] = count;
    return whole;
  }
  // Where the rows begin in a dense tensor.
  int64_t ByteOffset(const TensorType& whole) const {
    return first * whole.row_elements() * DTypeBytes(whole.dtype);
  }
};

// Each about as large as the largest parameter of a layer. In fp32 all but the
// last are whole blocks of a disk; in bf16, which waits in host memory alone,
// halves of them, and so whole lines of memory. A parameter of the layers is
// one piece.
std::vector<PieceRows> CutIntoPieces(
    const ParameterLayout& layout,
    const std::vector<ParameterLayout>& all_parameters);

}  // namespace ebb
