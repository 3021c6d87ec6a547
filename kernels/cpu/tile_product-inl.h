// The innermost matrix product: a tile of C in registers, a panel of B two
// vectors wide, broadcast elements of A. Compiled once per instruction set.
// Every element of C is one chain of multiply-adds in the order of k, started
// from zero or from C: its value depends neither on its place in a tile nor on
// how the caller cuts rows, columns or k.
#include "kernels/cpu/vector-inl.h"

// Included once per instruction set: this toggle stands for #pragma once.
#if defined(EBB_KERNELS_CPU_TILE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EBB_KERNELS_CPU_TILE_PRODUCT_INL_H_
#undef EBB_KERNELS_CPU_TILE_PRODUCT_INL_H_
#else
#define EBB_KERNELS_CPU_TILE_PRODUCT_INL_H_
#endif

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// Columns of a panel of B.
HWY_INLINE size_t PanelColumns() { return 2 * hn::Lanes(Floats()); }

// Rows of a tile: twice as many accumulators fill the registers that two
// vectors of B and a broadcast leave (16 registers before AVX-512, then 32).
#if HWY_TARGET <= HWY_AVX3
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 6;
#endif

// A [rows, k] with any strides (elements).
struct MatrixView {
  const float* data;
  size_t row_stride;  // within a tile
  size_t column_stride;
  size_t tile_stride;  // from one tile of kTileRows rows to the next

  MatrixView(const float* from, size_t rows_apart, size_t columns_apart)
      : MatrixView(from, rows_apart, columns_apart, kTileRows * rows_apart) {}
  MatrixView(const float* from, size_t rows_apart, size_t columns_apart,
             size_t tiles_apart)
      : data(from),
        row_stride(rows_apart),
        column_stride(columns_apart),
        tile_stride(tiles_apart) {}
};

// `kRows` rows of accumulators, one row and those above it.
template <int kRows>
struct TileAccumulators {
  FloatVec low, high;
  TileAccumulators<kRows - 1> above;

  HWY_INLINE void SetZero() {
    low = hn::Zero(Floats());
    high = hn::Zero(Floats());
    above.SetZero();
  }
  template <typename Low, typename High>
  HWY_INLINE void Load(const float* c, size_t stride, Low in_low,
                       High in_high) {
    const float* row = c + (kRows - 1) * stride;
    low = LoadSome(row, in_low);
    high = LoadSome(row + hn::Lanes(Floats()), in_high);
    above.Load(c, stride, in_low, in_high);
  }
  template <typename Low, typename High>
  HWY_INLINE void Store(float* c, size_t stride, Low in_low,
                        High in_high) const {
    float* row = c + (kRows - 1) * stride;
    StoreSome(low, row, in_low);
    StoreSome(high, row + hn::Lanes(Floats()), in_high);
    above.Store(c, stride, in_low, in_high);
  }
  HWY_INLINE void Step(const float* a, size_t row_stride, FloatVec b_low,
                       FloatVec b_high) {
    const FloatVec element = hn::Set(Floats(), a[(kRows - 1) * row_stride]);
    low = hn::MulAdd(element, b_low, low);
    high = hn::MulAdd(element, b_high, high);
    above.Step(a, row_stride, b_low, b_high);
  }
};

template <>
struct TileAccumulators<0> {
  HWY_INLINE void SetZero() {}
  template <typename Low, typename High>
  HWY_INLINE void Load(const float*, size_t, Low, High) {}
  template <typename Low, typename High>
  HWY_INLINE void Store(float*, size_t, Low, High) const {}
  HWY_INLINE void Step(const float*, size_t, FloatVec, FloatVec) {}
};

// C [kRows, columns] (+)= A [kRows, depth] * panel [depth, PanelColumns()].
template <int kRows>
HWY_INLINE void MultiplyTile(const MatrixView& a, const float* panel,
                             size_t depth, bool add, float* c, size_t c_stride,
                             size_t columns) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  TileAccumulators<kRows> tile;
  const size_t in_low = HWY_MIN(columns, lanes);
  const size_t in_high = columns - in_low;
  if (!add) {
    tile.SetZero();
  } else if (columns == 2 * lanes) {
    tile.Load(c, c_stride, AllLanes(), AllLanes());
  } else {
    tile.Load(c, c_stride, in_low, in_high);
  }
  const float* element = a.data;
  for (size_t k = 0; k < depth; ++k) {
    tile.Step(element, a.row_stride, hn::LoadU(d, panel),
              hn::LoadU(d, panel + lanes));
    element += a.column_stride;
    panel += 2 * lanes;
  }
  if (columns == 2 * lanes) {
    tile.Store(c, c_stride, AllLanes(), AllLanes());
  } else {
    tile.Store(c, c_stride, in_low, in_high);
  }
}

// The same for any number of rows.
HWY_INLINE void MultiplyPanel(size_t rows, MatrixView a, const float* panel,
                              size_t depth, bool add, float* c, size_t c_stride,
                              size_t columns) {
  for (; rows >= kTileRows; rows -= kTileRows) {
    MultiplyTile<kTileRows>(a, panel, depth, add, c, c_stride, columns);
    a.data += a.tile_stride;
    c += kTileRows * c_stride;
  }
  for (; rows >= 2; rows -= 2) {
    MultiplyTile<2>(a, panel, depth, add, c, c_stride, columns);
    a.data += 2 * a.row_stride;
    c += 2 * c_stride;
  }
  if (rows == 1) MultiplyTile<1>(a, panel, depth, add, c, c_stride, columns);
}

// C [rows, columns] (+)= A [rows, depth] * B, where panel p of B starts at
// panels + p * panel_stride.
HWY_INLINE void MultiplyPanels(size_t rows, const MatrixView& a,
                               const float* panels, size_t panel_stride,
                               size_t depth, bool add, float* c,
                               size_t c_stride, size_t columns) {
  const size_t panel_columns = PanelColumns();
  for (size_t at = 0; at < columns; at += panel_columns) {
    MultiplyPanel(rows, a, panels, depth, add, c + at, c_stride,
                  HWY_MIN(panel_columns, columns - at));
    panels += panel_stride;
  }
}

// Packs A, given transposed ([depth, rows] with rows `row_stride` apart), tile
// by tile: a tile is [depth, kTileRows].
HWY_INLINE MatrixView PackTiles(const float* a, size_t row_stride, size_t depth,
                                size_t rows, float* tiles) {
  for (size_t row = 0; row < rows; row += kTileRows) {
    const size_t height = HWY_MIN(static_cast<size_t>(kTileRows), rows - row);
    const float* from = a + row;
    float* to = tiles + row * depth;
    for (size_t k = 0; k < depth; ++k) {
      for (size_t r = 0; r < height; ++r) to[r] = from[r];
      from += row_stride;
      to += kTileRows;
    }
  }
  return {tiles, 1, kTileRows, kTileRows * depth};
}

// Packs B [depth, columns] with rows `row_stride` apart into panels
// [depth, PanelColumns()], each panel_stride apart, filled up with zeros.
// Elements are multiplied by `factor`.
HWY_INLINE void PackRows(const float* b, size_t row_stride, size_t depth,
                         size_t columns, float factor, float* panels,
                         size_t panel_stride) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const FloatVec factors = hn::Set(d, factor);
  const size_t panel_columns = PanelColumns();
  for (size_t at = 0; at < columns; at += panel_columns) {
    const size_t width = HWY_MIN(panel_columns, columns - at);
    const float* from = b + at;
    float* to = panels;
    for (size_t k = 0; k < depth; ++k) {
      if (width == panel_columns) {
        hn::StoreU(hn::Mul(hn::LoadU(d, from), factors), d, to);
        hn::StoreU(hn::Mul(hn::LoadU(d, from + lanes), factors), d, to + lanes);
      } else {
        for (size_t i = 0; i < panel_columns; ++i) {
          to[i] = i < width ? from[i] * factor : 0.0f;
        }
      }
      from += row_stride;
      to += panel_columns;
    }
    panels += panel_stride;
  }
}

// The same for B given transposed: element (k, i) is b[i * row_stride + k].
HWY_INLINE void PackTransposed(const float* b, size_t row_stride, size_t depth,
                               size_t columns, float factor, float* panels,
                               size_t panel_stride) {
  const size_t panel_columns = PanelColumns();
  for (size_t at = 0; at < columns; at += panel_columns) {
    const size_t width = HWY_MIN(panel_columns, columns - at);
    for (size_t i = 0; i < panel_columns; ++i) {
      float* to = panels + i;
      if (i < width) {
        const float* from = b + (at + i) * row_stride;
        for (size_t k = 0; k < depth; ++k) {
          to[k * panel_columns] = from[k] * factor;
        }
      } else {
        for (size_t k = 0; k < depth; ++k) to[k * panel_columns] = 0.0f;
      }
    }
    panels += panel_stride;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
