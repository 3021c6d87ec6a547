// Blocked product: B is packed block by block into panels that stay in the
// second-level cache, a panel meets all rows of a block of A. bf16 is widened
// as blocks are packed. Source of the blocking: Goto & van de Geijn 2008,
// "Anatomy of high- performance matrix multiplication", section 4.
#include "kernels/cpu/strided_product.h"

#include <cstddef>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/strided_product.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/tile_product-inl.h"

#ifndef EBB_KERNELS_CPU_STRIDED_PRODUCT_ONCE
#define EBB_KERNELS_CPU_STRIDED_PRODUCT_ONCE
namespace ebb::cpu {

// Block sizes: the blocks of A and B (144 + 384 KiB) fit a second-level cache,
// from where panels of B stream; the longer the depth, the fewer times C comes
// and goes. Rows are whole tiles and columns whole panels in every vector
// width.
constexpr size_t kBlockRows = 144;
constexpr size_t kBlockColumns = kStridedBlockColumns;
constexpr size_t kBlockDepth = 256;
// Rows of C whose sums wait to be rounded: B is packed once for all of them.
constexpr size_t kRoundedRows = 3 * kBlockRows;

}  // namespace ebb::cpu
#endif  // EBB_KERNELS_CPU_STRIDED_PRODUCT_ONCE

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// Adds one block of depth to sums [m, columns].
template <typename T>
void MultiplyDepth(const StridedProduct& p, const T* a, const T* b, size_t m,
                   size_t columns, size_t depth, bool add, const Sums& sums,
                   float* packed_b, float* packed_a) {
  const size_t panel_stride = kBlockDepth * PanelColumns();
  if (p.b_transposed) {
    PackTransposed(b, p.b_stride, depth, columns, p.factor, packed_b,
                   panel_stride);
  } else {
    PackRows(b, p.b_stride, depth, columns, p.factor, packed_b, panel_stride);
  }
  for (size_t row = 0; row < m; row += kBlockRows) {
    const size_t rows = HWY_MIN(kBlockRows, m - row);
    const MatrixView block =
        p.a_transposed
            ? PackTiles(a + row, p.a_stride, depth, rows, packed_a)
            : WideRows(a + row * p.a_stride, p.a_stride, rows, depth, packed_a);
    MultiplyPanels(rows, block, packed_b, panel_stride, depth, add,
                   sums.data + row * sums.stride, sums.stride, columns);
  }
}

template <typename T, typename C>
void MultiplyTyped(const StridedProduct& p, float* packed_b, float* packed_a,
                   float* tile) {
  const size_t m = p.m, n = p.n, k = p.k;
  const T* a = static_cast<const T*>(p.a);
  const T* b = static_cast<const T*>(p.b);
  const T* bias = static_cast<const T*>(p.bias);
  constexpr bool kRounds = std::is_same_v<C, Bf16>;
  const size_t rows_at_once = kRounds ? kRoundedRows : m;
  for (size_t column = 0; column < n; column += kBlockColumns) {
    const size_t columns = HWY_MIN(kBlockColumns, n - column);
    for (size_t first = 0; first < m; first += rows_at_once) {
      const size_t rows = HWY_MIN(rows_at_once, m - first);
      C* c = static_cast<C*>(p.c) + first * p.c_stride + column;
      const Sums sums = SumsOf(c, p.c_stride, tile, kBlockColumns);
      bool add = p.add;
      if (bias != nullptr) {
        for (size_t row = 0; row < rows; ++row) {
          float* to = sums.data + row * sums.stride;
          for (size_t i = 0; i < columns; ++i) {
            to[i] = ToFloat(bias[column + i]);
          }
        }
        add = true;
      }
      const size_t a_first = first * (p.a_transposed ? 1 : p.a_stride);
      const size_t b_first = column * (p.b_transposed ? p.b_stride : 1);
      for (int64_t term = 0; term < p.num_terms; ++term) {
        for (size_t at = 0; at < k; at += kBlockDepth) {
          MultiplyDepth(p,
                        a + term * p.a_term_stride + a_first +
                            at * (p.a_transposed ? p.a_stride : 1),
                        b + term * p.b_term_stride + b_first +
                            at * (p.b_transposed ? 1 : p.b_stride),
                        rows, columns, HWY_MIN(kBlockDepth, k - at), add, sums,
                        packed_b, packed_a);
          add = true;
        }
      }
      RoundSums(sums, c, p.c_stride, rows, columns);
    }
  }
}

void MultiplyBlocks(const StridedProduct& p, float* packed_b, float* packed_a,
                    float* tile) {
  if (p.c_dtype == DType::kBf16) {
    MultiplyTyped<Bf16, Bf16>(p, packed_b, packed_a, tile);
  } else if (p.dtype == DType::kBf16) {
    MultiplyTyped<Bf16, float>(p, packed_b, packed_a, tile);
  } else {
    MultiplyTyped<float, float>(p, packed_b, packed_a, tile);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(MultiplyBlocks);

constexpr int64_t kPackedBytes =
    (kBlockRows + kBlockColumns) * kBlockDepth * sizeof(float);
static_assert(kPackedBytes == StridedProductBytes(DType::kF32));
static_assert(kPackedBytes + kRoundedRows * kBlockColumns * sizeof(float) ==
              StridedProductBytes(DType::kBf16));

void MultiplyStrided(const StridedProduct& product, void* scratch) {
  float* packed_b = static_cast<float*>(scratch);
  float* packed_a = packed_b + kBlockColumns * kBlockDepth;
  float* tile = packed_a + kBlockRows * kBlockDepth;
  HWY_DYNAMIC_DISPATCH(MultiplyBlocks)(product, packed_b, packed_a, tile);
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
