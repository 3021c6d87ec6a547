#include "worker/program/state_pieces.h"

#include <algorithm>
#include <numeric>

namespace ebb {
namespace {

// Of one parameter.
constexpr int64_t kMostPieces = 64;

int64_t RowsOfPiece(const ParameterLayout& layout,
                    const std::vector<ParameterLayout>& all_parameters) {
  const TensorType type = layout.fp32_type();
  const int64_t rows = type.dims[0];
  int64_t largest = 0;  // of a layer
  for (const ParameterLayout& other : all_parameters) {
    if (other.num_layers == 0) continue;
    largest = std::max(largest, other.fp32_type().bytes());
  }
  if (layout.num_layers != 0 || largest == 0 || type.bytes() <= largest) {
    return rows;
  }
  const int64_t row_bytes = type.bytes() / rows;
  // bf16 rows are half as long.
  const int64_t unit = kDiskBlockBytes / std::gcd(kDiskBlockBytes, row_bytes);
  const int64_t wanted =
      std::max(largest / row_bytes, (rows + kMostPieces - 1) / kMostPieces);
  return std::min(rows, (wanted + unit - 1) / unit * unit);
}

}  // namespace

std::vector<PieceRows> CutIntoPieces(
    const ParameterLayout& layout,
    const std::vector<ParameterLayout>& all_parameters) {
  const int64_t rows = layout.type.dims[0];
  const int64_t step = RowsOfPiece(layout, all_parameters);
  std::vector<PieceRows> pieces;
  for (int64_t first = 0; first < rows; first += step) {
    pieces.push_back(
        {static_cast<int>(pieces.size()), first, std::min(step, rows - first)});
  }
  return pieces;
}

}  // namespace ebb
