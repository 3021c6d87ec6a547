// Blocked product: B is packed by blocks of columns and depth into panels, a
// panel meets all rows of a block of A. bf16 is widened as blocks are packed.
// Source of the blocking: Goto & van de Geijn 2008, "Anatomy of
// high-performance matrix multiplication", section 4.
#include "kernels/cpu/strided_product.h"

#include <cstddef>
#include <type_traits>

#include "kernels/cpu/row_loop.h"
#include "kernels/ops/workspace.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/strided_product.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/tile_product-inl.h"

#ifndef EBB_KERNELS_CPU_STRIDED_PRODUCT_ONCE
#define EBB_KERNELS_CPU_STRIDED_PRODUCT_ONCE
namespace ebb::cpu {

// Rows are whole tiles and columns whole panels in every vector width. Panels
// of one block of depth stream from the second-level cache; the sums of a block
// of rows stay there for as many blocks of depth as are packed at once.
constexpr size_t kBlockRows = kStridedBlockRows;
constexpr size_t kBlockColumns = kStridedBlockColumns;
constexpr size_t kBlockDepth = kStridedBlockDepth;

struct StridedScratch {
  StridedSizes sizes;
  float* packed_b;  // sizes.blocks blocks
  float* packed_a;  // a block
  float* sums;      // of a bf16 result
};

inline void FinishBlock(const StridedProduct& p, size_t row, size_t rows,
                        size_t column, size_t columns) {
  if (p.tail == nullptr) return;
  const int64_t first_row = p.first_row + static_cast<int64_t>(row);
  const int64_t first_column = p.first_column + static_cast<int64_t>(column);
  RunTail(*p.tail, {first_row, first_row + static_cast<int64_t>(rows)},
          {first_column, first_column + static_cast<int64_t>(columns)});
}

}  // namespace ebb::cpu
#endif  // EBB_KERNELS_CPU_STRIDED_PRODUCT_ONCE

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// A block of the depth of one term, and where its panels lie.
template <typename T>
struct DepthBlock {
  const T* a;  // first row
  const T* b;  // first column
  size_t depth;
  float* panels;
};

template <typename T, typename C>
void MultiplyTyped(const StridedProduct& p, const StridedScratch& scratch) {
  const size_t m = p.m, n = p.n, k = p.k;
  const T* a = static_cast<const T*>(p.a);
  const T* b = static_cast<const T*>(p.b);
  const T* bias = static_cast<const T*>(p.bias);
  const size_t a_row = p.a_transposed ? 1 : p.a_stride;
  const size_t a_depth = p.a_transposed ? p.a_stride : 1;
  const size_t b_column = p.b_transposed ? p.b_stride : 1;
  const size_t b_depth = p.b_transposed ? 1 : p.b_stride;
  const size_t blocks_of_term = (k + kBlockDepth - 1) / kBlockDepth;
  const size_t num_blocks = p.num_terms * blocks_of_term;
  const StridedSizes& sizes = scratch.sizes;
  const size_t panel_stride = sizes.depth * PanelColumns();
  // Sums of a bf16 result that are not complete with the blocks packed at once
  // wait for the next ones.
  const bool wait =
      std::is_same_v<C, Bf16> && num_blocks > kStridedBlocksAtOnce;
  const size_t rows_at_once = wait ? kStridedWaitingRows : m;
  for (size_t column = 0; column < n; column += kBlockColumns) {
    const size_t columns = HWY_MIN(kBlockColumns, n - column);
    const auto block_at = [&](size_t block) HWY_ATTR {
      const size_t term = block / blocks_of_term;
      const size_t at = block % blocks_of_term * kBlockDepth;
      return DepthBlock<T>{
          .a = a + term * p.a_term_stride + at * a_depth,
          .b = b + term * p.b_term_stride + at * b_depth + column * b_column,
          .depth = HWY_MIN(kBlockDepth, k - at),
          .panels = scratch.packed_b + block % kStridedBlocksAtOnce *
                                           (sizes.depth * sizes.columns)};
    };
    for (size_t group = 0; group < m; group += rows_at_once) {
      const size_t group_end = HWY_MIN(group + rows_at_once, m);
      for (size_t begin = 0; begin < num_blocks;
           begin += kStridedBlocksAtOnce) {
        const size_t end = HWY_MIN(begin + kStridedBlocksAtOnce, num_blocks);
        for (size_t block = begin; block < end; ++block) {
          const DepthBlock<T> of = block_at(block);
          if (p.b_transposed) {
            PackTransposed(of.b, p.b_stride, of.depth, columns, p.factor,
                           of.panels, panel_stride);
          } else {
            PackRows(of.b, p.b_stride, of.depth, columns, p.factor, of.panels,
                     panel_stride);
          }
        }
        for (size_t row = group; row < group_end; row += kBlockRows) {
          const size_t rows = HWY_MIN(kBlockRows, group_end - row);
          C* c = static_cast<C*>(p.c) + row * p.c_stride + column;
          const Sums sums =
              SumsOf(c, p.c_stride,
                     scratch.sums + (wait ? (row - group) * sizes.columns : 0),
                     sizes.columns);
          if (begin == 0 && bias != nullptr) {
            for (size_t r = 0; r < rows; ++r) {
              float* to = sums.data + r * sums.stride;
              for (size_t i = 0; i < columns; ++i) {
                to[i] = ToFloat(bias[column + i]);
              }
            }
          }
          for (size_t block = begin; block < end; ++block) {
            const DepthBlock<T> of = block_at(block);
            const T* a_block = of.a + row * a_row;
            const MatrixView view =
                p.a_transposed ? PackTiles(a_block, p.a_stride, of.depth, rows,
                                           scratch.packed_a)
                               : WideRows(a_block, p.a_stride, rows, of.depth,
                                          scratch.packed_a);
            MultiplyPanels(rows, view, of.panels, panel_stride, of.depth,
                           p.add || bias != nullptr || block > 0, sums.data,
                           sums.stride, columns);
          }
          if (end < num_blocks) continue;
          RoundSums(sums, c, p.c_stride, rows, columns);
          FinishBlock(p, row, rows, column, columns);
        }
      }
    }
  }
}

void MultiplyBlocks(const StridedProduct& p, const StridedScratch& scratch) {
  if (p.c_dtype == DType::kBf16) {
    MultiplyTyped<Bf16, Bf16>(p, scratch);
  } else if (p.dtype == DType::kBf16) {
    MultiplyTyped<Bf16, float>(p, scratch);
  } else {
    MultiplyTyped<float, float>(p, scratch);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(MultiplyBlocks);

void MultiplyStrided(const StridedProduct& product, void* scratch) {
  const StridedSizes sizes(product.c_dtype, product.m, product.n, product.k,
                           product.num_terms);
  float* packed_b = static_cast<float*>(scratch);
  float* packed_a = packed_b + sizes.blocks * sizes.columns * sizes.depth;
  HWY_DYNAMIC_DISPATCH(MultiplyBlocks)
  (product, {sizes, packed_b, packed_a, packed_a + sizes.rows * sizes.depth});
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
