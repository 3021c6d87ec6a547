// The innermost matrix product: a tile of C in registers, a panel of B some
// vectors wide, broadcast elements of A. All three are fp32: operands stored in
// bf16 are widened as they are packed. Compiled once per instruction set.
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
#include <cstring>

#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// A tile is kTileRows x kPanelVectors vectors of accumulators: with a row of B
// and a broadcast they fill the registers, 16 before AVX-512, then 32.
constexpr int kTileRows = 6;
#if HWY_TARGET <= HWY_AVX3
constexpr int kPanelVectors = 4;
#else
constexpr int kPanelVectors = 2;
#endif

// Elements of a cache line.
constexpr size_t kLineFloats = 16;

// Columns of a panel of B.
HWY_INLINE size_t PanelColumns() { return kPanelVectors * hn::Lanes(Floats()); }

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

// `kVectors` vectors side by side: the last one and those before it.
template <int kVectors>
struct RowVectors {
  RowVectors<kVectors - 1> before;
  FloatVec last;

  HWY_INLINE static size_t Offset() {
    return (kVectors - 1) * hn::Lanes(Floats());
  }
  HWY_INLINE void SetZero() {
    before.SetZero();
    last = hn::Zero(Floats());
  }
  HWY_INLINE void Load(const float* from) {
    before.Load(from);
    last = hn::LoadU(Floats(), from + Offset());
  }
  HWY_INLINE void Store(float* to) const {
    before.Store(to);
    hn::StoreU(last, Floats(), to + Offset());
  }
  HWY_INLINE void MulAdd(FloatVec factor, const RowVectors& b) {
    before.MulAdd(factor, b.before);
    last = hn::MulAdd(factor, b.last, last);
  }
};

template <>
struct RowVectors<0> {
  HWY_INLINE void SetZero() {}
  HWY_INLINE void Load(const float*) {}
  HWY_INLINE void Store(float*) const {}
  HWY_INLINE void MulAdd(FloatVec, const RowVectors&) {}
};

// `kRows` rows of accumulators: the last one and those above it.
template <int kRows, int kVectors>
struct TileAccumulators {
  TileAccumulators<kRows - 1, kVectors> above;
  RowVectors<kVectors> row;

  HWY_INLINE void SetZero() {
    above.SetZero();
    row.SetZero();
  }
  HWY_INLINE void Load(const float* c, size_t stride) {
    above.Load(c, stride);
    row.Load(c + (kRows - 1) * stride);
  }
  HWY_INLINE void Store(float* c, size_t stride) const {
    above.Store(c, stride);
    row.Store(c + (kRows - 1) * stride);
  }
  HWY_INLINE void Step(const float* a, size_t row_stride,
                       const RowVectors<kVectors>& b) {
    above.Step(a, row_stride, b);
    row.MulAdd(hn::Set(Floats(), a[(kRows - 1) * row_stride]), b);
  }
};

template <int kVectors>
struct TileAccumulators<0, kVectors> {
  HWY_INLINE void SetZero() {}
  HWY_INLINE void Load(const float*, size_t) {}
  HWY_INLINE void Store(float*, size_t) const {}
  HWY_INLINE void Step(const float*, size_t, const RowVectors<kVectors>&) {}
};

// C [kRows, kVectors vectors] (+)= A [kRows, depth] * panel
// [depth, PanelColumns()]. Nothing here takes a vector's address: compilers
// would keep the accumulators in memory then.
template <int kRows, int kVectors>
HWY_INLINE void MultiplyWholeTile(const MatrixView& a, const float* panel,
                                  size_t depth, bool add, float* c,
                                  size_t c_stride) {
  const size_t panel_columns = PanelColumns();
  TileAccumulators<kRows, kVectors> tile;
  if (add) {
    tile.Load(c, c_stride);
  } else {
    tile.SetZero();
  }
  const float* element = a.data;
  for (size_t k = 0; k < depth; ++k) {
    RowVectors<kVectors> b;
    b.Load(panel);
    tile.Step(element, a.row_stride, b);
    element += a.column_stride;
    panel += panel_columns;
  }
  tile.Store(c, c_stride);
}

// The same for the first `columns` columns of C alone; the sums of a part of a
// tile are formed beside C.
template <int kRows, int kVectors>
HWY_INLINE void MultiplyTile(const MatrixView& a, const float* panel,
                             size_t depth, bool add, float* c, size_t c_stride,
                             size_t columns) {
  const size_t tile_columns = kVectors * hn::Lanes(Floats());
  const bool whole = columns == tile_columns;
  HWY_ALIGN float beside[kRows * kVectors * hn::MaxLanes(Floats())];
  float* const sums = whole ? c : beside;
  const size_t stride = whole ? c_stride : tile_columns;
  if (!whole && add) {
    std::memset(beside, 0, sizeof(beside));
    for (size_t row = 0; row < kRows; ++row) {
      std::memcpy(beside + row * stride, c + row * c_stride,
                  columns * sizeof(float));
    }
  }
  MultiplyWholeTile<kRows, kVectors>(a, panel, depth, add, sums, stride);
  if (whole) return;
  for (size_t row = 0; row < kRows; ++row) {
    std::memcpy(c + row * c_stride, beside + row * stride,
                columns * sizeof(float));
  }
}

// The same for any number of rows.
template <int kVectors>
HWY_INLINE void MultiplyRows(size_t rows, MatrixView a, const float* panel,
                             size_t depth, bool add, float* c, size_t c_stride,
                             size_t columns) {
  for (; rows >= kTileRows; rows -= kTileRows) {
    // The next tile's sums come from afar: they arrive during this one.
    for (size_t row = kTileRows; row < HWY_MIN(rows, 2 * kTileRows); ++row) {
      for (size_t i = 0; i < columns; i += kLineFloats) {
        hwy::Prefetch(c + row * c_stride + i);
      }
    }
    MultiplyTile<kTileRows, kVectors>(a, panel, depth, add, c, c_stride,
                                      columns);
    a.data += a.tile_stride;
    c += kTileRows * c_stride;
  }
  for (; rows >= 2; rows -= 2) {
    MultiplyTile<2, kVectors>(a, panel, depth, add, c, c_stride, columns);
    a.data += 2 * a.row_stride;
    c += 2 * c_stride;
  }
  if (rows == 1) {
    MultiplyTile<1, kVectors>(a, panel, depth, add, c, c_stride, columns);
  }
}

// The same with half a panel where that is enough.
HWY_INLINE void MultiplyPanel(size_t rows, const MatrixView& a,
                              const float* panel, size_t depth, bool add,
                              float* c, size_t c_stride, size_t columns) {
  if (columns <= PanelColumns() / 2) {
    MultiplyRows<kPanelVectors / 2>(rows, a, panel, depth, add, c, c_stride,
                                    columns);
  } else {
    MultiplyRows<kPanelVectors>(rows, a, panel, depth, add, c, c_stride,
                                columns);
  }
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

// Where the fp32 sums of a part of C are formed: in C itself, or in `tile`,
// which RoundSums stores as C once they are complete.
struct Sums {
  float* data;
  size_t stride;
};
HWY_INLINE Sums SumsOf(float* c, size_t c_stride, float*, size_t) {
  return {c, c_stride};
}
HWY_INLINE Sums SumsOf(Bf16*, size_t, float* tile, size_t tile_stride) {
  return {tile, tile_stride};
}
HWY_INLINE void RoundSums(const Sums&, float*, size_t, size_t, size_t) {}
HWY_INLINE void RoundSums(const Sums& sums, Bf16* c, size_t c_stride,
                          size_t rows, size_t columns) {
  for (size_t row = 0; row < rows; ++row) {
    const float* from = sums.data + row * sums.stride;
    Bf16* to = c + row * c_stride;
    ForEachVector(columns, [&](size_t i, auto count) HWY_ATTR {
      StoreSome(LoadSome(from + i, count), to + i, count);
    });
  }
}

// Rows of A [rows, depth], `row_stride` apart: where they lie.
HWY_INLINE MatrixView WideRows(const float* a, size_t row_stride, size_t,
                               size_t, float*) {
  return {a, row_stride, 1};
}
// The same for bf16: widened into `wide`, one behind the other.
HWY_INLINE MatrixView WideRows(const Bf16* a, size_t row_stride, size_t rows,
                               size_t depth, float* wide) {
  for (size_t row = 0; row < rows; ++row) {
    const Bf16* from = a + row * row_stride;
    float* to = wide + row * depth;
    ForEachVector(depth, [&](size_t i, auto count) HWY_ATTR {
      StoreSome(LoadSome(from + i, count), to + i, count);
    });
  }
  return {wide, depth, 1};
}

using Quads = hn::CappedTag<float, 4>;

HWY_INLINE hn::Vec<Quads> LoadQuad(const float* from) {
  return hn::LoadU(Quads(), from);
}
HWY_INLINE hn::Vec<Quads> LoadQuad(const Bf16* from) {
  const hn::Rebind<uint16_t, Quads> halves;
  const hn::RebindToUnsigned<Quads> words;
  return hn::BitCast(Quads(), hn::ShiftLeft<16>(hn::PromoteTo(
                                  words, hn::LoadU(halves, &from->bits))));
}

// Packs A, given transposed ([depth, rows] with rows `row_stride` apart), tile
// by tile: a tile is [depth, kTileRows].
template <typename T>
HWY_INLINE MatrixView PackTiles(const T* a, size_t row_stride, size_t depth,
                                size_t rows, float* tiles) {
  static_assert(kTileRows <= 8);
  for (size_t row = 0; row < rows; row += kTileRows) {
    const T* from = a + row;
    float* to = tiles + row * depth;
    if (row + 8 <= rows) {
      // What is copied too much is overwritten, at last by the next tile.
      for (size_t k = 0; k < depth; ++k) {
        const auto first = LoadQuad(from), second = LoadQuad(from + 4);
        hn::StoreU(first, Quads(), to);
        hn::StoreU(second, Quads(), to + 4);
        from += row_stride;
        to += kTileRows;
      }
      continue;
    }
    const size_t height = HWY_MIN(static_cast<size_t>(kTileRows), rows - row);
    for (size_t k = 0; k < depth; ++k) {
      for (size_t r = 0; r < height; ++r) to[r] = ToFloat(from[r]);
      from += row_stride;
      to += kTileRows;
    }
  }
  return {tiles, 1, kTileRows, kTileRows * depth};
}

// Packs B [depth, columns] with rows `row_stride` apart into panels
// [depth, PanelColumns()], each panel_stride apart, filled up with zeros.
// Elements are multiplied by `factor`.
template <typename T>
HWY_INLINE void PackRows(const T* b, size_t row_stride, size_t depth,
                         size_t columns, float factor, float* panels,
                         size_t panel_stride) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const FloatVec factors = hn::Set(d, factor);
  const size_t panel_columns = PanelColumns();
  for (size_t at = 0; at < columns; at += panel_columns) {
    const size_t width = HWY_MIN(panel_columns, columns - at);
    const T* from = b + at;
    float* to = panels;
    for (size_t k = 0; k < depth; ++k) {
      if (width == panel_columns) {
        for (size_t i = 0; i < panel_columns; i += lanes) {
          hn::StoreU(hn::Mul(LoadSome(from + i, AllLanes()), factors), d,
                     to + i);
        }
      } else {
        for (size_t i = 0; i < panel_columns; ++i) {
          to[i] = i < width ? ToFloat(from[i]) * factor : 0.0f;
        }
      }
      from += row_stride;
      to += panel_columns;
    }
    panels += panel_stride;
  }
}

// The same for B given transposed: element (k, i) is b[i * row_stride + k].
// Squares of 4 x 4 are turned in registers, a cache line of every row at a
// time: what is read and what is written stay in the first-level cache.
template <typename T>
HWY_INLINE void PackTransposed(const T* b, size_t row_stride, size_t depth,
                               size_t columns, float factor, float* panels,
                               size_t panel_stride) {
  constexpr size_t kAtOnce = 64 / sizeof(T);
  const Quads d;
  const auto factors = hn::Set(d, factor);
  const size_t panel_columns = PanelColumns();
  for (size_t at = 0; at < columns; at += panel_columns) {
    const size_t width = HWY_MIN(panel_columns, columns - at);
    const size_t square_width = width / 4 * 4;
    const size_t square_depth = depth / 4 * 4;
    for (size_t first = 0; first < square_depth; first += kAtOnce) {
      const size_t end = HWY_MIN(first + kAtOnce, square_depth);
      for (size_t i = 0; i < square_width; i += 4) {
        const T* from = b + (at + i) * row_stride;
        float* to = panels + first * panel_columns + i;
        for (size_t row = 0; row < 4; ++row) {
          hwy::Prefetch(from + row * row_stride + first + 2 * kAtOnce);
        }
        for (size_t k = first; k < end; k += 4) {
          const auto load = [&](size_t row) HWY_ATTR {
            return hn::Mul(LoadQuad(from + row * row_stride + k), factors);
          };
          const auto row0 = load(0), row1 = load(1), row2 = load(2),
                     row3 = load(3);
          const auto low01 = hn::InterleaveLower(d, row0, row1);
          const auto low23 = hn::InterleaveLower(d, row2, row3);
          const auto high01 = hn::InterleaveUpper(d, row0, row1);
          const auto high23 = hn::InterleaveUpper(d, row2, row3);
          hn::StoreU(hn::ConcatLowerLower(d, low23, low01), d, to);
          hn::StoreU(hn::ConcatUpperUpper(d, low23, low01), d,
                     to + panel_columns);
          hn::StoreU(hn::ConcatLowerLower(d, high23, high01), d,
                     to + 2 * panel_columns);
          hn::StoreU(hn::ConcatUpperUpper(d, high23, high01), d,
                     to + 3 * panel_columns);
          to += 4 * panel_columns;
        }
      }
    }
    for (size_t i = 0; i < panel_columns; ++i) {
      const T* from = b + (at + i) * row_stride;
      for (size_t k = i < square_width ? square_depth : 0; k < depth; ++k) {
        panels[k * panel_columns + i] =
            i < width ? ToFloat(from[k]) * factor : 0.0f;
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
