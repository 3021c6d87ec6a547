// Blocked product: B is packed block by block into panels that stay in the
// second-level cache, a panel meets all rows of a block of A.
// Source of the blocking: Goto & van de Geijn 2008, "Anatomy of high-
// performance matrix multiplication", section 4.
#include "kernels/cpu/strided_product.h"

#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/strided_product.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/tile_product-inl.h"

#ifndef EBB_KERNELS_CPU_STRIDED_PRODUCT_ONCE
#define EBB_KERNELS_CPU_STRIDED_PRODUCT_ONCE
namespace ebb::cpu {

// Block sizes: a panel of 128 x 64 floats fills most of a first-level cache,
// the blocks of A and B (72 + 192 KiB) fit a second-level one. Rows are whole
// tiles and columns whole panels in every vector width.
constexpr size_t kBlockRows = 144;
constexpr size_t kBlockColumns = 384;
constexpr size_t kBlockDepth = 128;

}  // namespace ebb::cpu
#endif  // EBB_KERNELS_CPU_STRIDED_PRODUCT_ONCE

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

void MultiplyBlocks(const StridedProduct& p, float* packed_b, float* packed_a) {
  const size_t m = p.m, n = p.n, k = p.k;
  const size_t panel_columns = PanelColumns();
  const size_t panel_stride = kBlockDepth * panel_columns;
  for (size_t column = 0; column < n; column += kBlockColumns) {
    const size_t columns = HWY_MIN(kBlockColumns, n - column);
    bool add = p.add;
    if (p.bias != nullptr) {
      for (size_t row = 0; row < m; ++row) {
        float* c = p.c + row * p.c_stride + column;
        for (size_t i = 0; i < columns; ++i) c[i] = p.bias[column + i];
      }
      add = true;
    }
    for (size_t at = 0; at < k; at += kBlockDepth) {
      const size_t depth = HWY_MIN(kBlockDepth, k - at);
      if (p.b_transposed) {
        PackTransposed(p.b + column * p.b_stride + at, p.b_stride, depth,
                       columns, p.factor, packed_b, panel_stride);
      } else {
        PackRows(p.b + at * p.b_stride + column, p.b_stride, depth, columns,
                 p.factor, packed_b, panel_stride);
      }
      for (size_t row = 0; row < m; row += kBlockRows) {
        const size_t rows = HWY_MIN(kBlockRows, m - row);
        MatrixView a(p.a + row * p.a_stride + at, p.a_stride, 1);
        if (p.a_transposed) {
          a = PackTiles(p.a + at * p.a_stride + row, p.a_stride, depth, rows,
                        packed_a);
        }
        MultiplyPanels(rows, a, packed_b, panel_stride, depth, add,
                       p.c + row * p.c_stride + column, p.c_stride, columns);
      }
      add = true;
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(MultiplyBlocks);

static_assert((kBlockRows + kBlockColumns) * kBlockDepth * sizeof(float) ==
              kStridedProductBytes);

void MultiplyStrided(const StridedProduct& product, void* scratch) {
  float* packed_b = static_cast<float*>(scratch);
  float* packed_a = packed_b + kBlockColumns * kBlockDepth;
  HWY_DYNAMIC_DISPATCH(MultiplyBlocks)(product, packed_b, packed_a);
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
