// Fused causal attention on tiles of 64 queries x 64 keys, one head at a time
// on one thread; the part above the diagonal is skipped, tile by tile.
//
// Forward (Dao 2023, algorithm 1): for a block of queries i, over blocks of
// keys j <= i,
//   S = q_i k_j^T / sqrt(W);  m' = max(m, rowmax S);  P = exp(S - m')
//   l = exp(m - m') l + rowsum P;  C = exp(m - m') C + drop(P) v_j
// and at the end y_i = C / l, lse_i = m + log l.
//
// Backward (algorithm 2, with dropout): for a block of keys j, over the heads
// of its group and blocks of queries i >= j,
//   P = exp(S - lse_i);  dP = drop(dy_i v_j^T)
//   D = rowsum(dy_i * y_i);  dS = P * (dP - D)
//   dv_j += drop(P)^T dy_i;  dk_j += dS^T q_i / sqrt(W);
//   dq_i += dS k_j / sqrt(W)
// Heads that share keys run on one thread in order, so that every sum has one
// order whatever the team. 1 / sqrt(W) is applied when operands are packed.
//
// All of it is fp32. bf16 operands are widened as they are packed or, where a
// product takes rows as they lie, into scratch; y, dk and dv are rounded at the
// end, and so is dq, whose sums over blocks of keys wait in scratch.
#include "kernels/ops/attention.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/head_views.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/ops/workspace.h"
#include "kernels/philox.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/tile_product-inl.h"

#ifndef EBB_KERNELS_CPU_ATTENTION_ONCE
#define EBB_KERNELS_CPU_ATTENTION_ONCE
namespace ebb::cpu {

constexpr size_t kTile = kAttentionTile;

struct AttentionCall {
  const OpCall* call = nullptr;
  AttentionShape shape;
  uint64_t key = 0;  // of the draws
};

}  // namespace ebb::cpu
#endif  // EBB_KERNELS_CPU_ATTENTION_ONCE

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// Sizes of one head in this vector width.
struct HeadSizes {
  size_t seq_len, width;
  size_t panel_columns;
  size_t vector_width;  // W filled up to whole vectors
  size_t packed_width;  // W filled up to whole panels

  explicit HeadSizes(const AttentionShape& shape)
      : seq_len(shape.seq_len),
        width(shape.head_width),
        panel_columns(PanelColumns()),
        vector_width((width + hn::Lanes(Floats()) - 1) / hn::Lanes(Floats()) *
                     hn::Lanes(Floats())),
        packed_width((width + panel_columns - 1) / panel_columns *
                     panel_columns) {}
};

// Draws the words of one row of a tile: query t, keys s .. s + count - 1.
HWY_INLINE const uint32_t* DrawRow(const DrawStream& stream,
                                   const AttentionShape& shape, int64_t head,
                                   size_t t, size_t s, size_t count,
                                   uint32_t* words) {
  const uint64_t row = static_cast<uint64_t>(head) * shape.seq_len + t;
  return DrawWords(stream, row * shape.seq_len + s, count, words);
}

HWY_INLINE DrawStream StreamOf(const AttentionCall& attention, size_t b) {
  const StepScalars& scalars = *attention.call->scalars;
  return {attention.key, static_cast<uint32_t>(scalars.first_sequence + b),
          static_cast<uint32_t>(scalars.step)};
}

// Lanes from `size` on become `other`.
HWY_INLINE FloatVec FirstOr(FloatVec value, FloatVec other, size_t at,
                            size_t size) {
  if (at + hn::Lanes(Floats()) <= size) return value;
  if (at >= size) return other;
  return hn::IfThenElse(hn::FirstN(Floats(), size - at), value, other);
}

template <typename T>
void ForwardHead(const AttentionCall& attention, size_t b, size_t h,
                 float* scratch) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const AttentionShape& shape = attention.shape;
  const Tensor* slots = attention.call->slots;
  const HeadSizes sizes(shape);
  const size_t seq_len = sizes.seq_len, width = sizes.width;
  const size_t panel = sizes.panel_columns, packed_width = sizes.packed_width;
  const size_t group = shape.num_heads / shape.num_kv_heads;
  const HeadRows q(slots[attention::kQ], shape, b, h);
  const HeadRows k(slots[attention::kK], shape, b, h / group);
  const HeadRows v(slots[attention::kV], shape, b, h / group);
  const HeadRows y(slots[attention::kY], shape, b, h);
  float* lse =
      slots[attention::kLse].as<float>() + (b * shape.num_heads + h) * seq_len;
  const float dropout = attention.call->attrs->dropout;
  const DrawStream stream = StreamOf(attention, b);
  const WordVec threshold = hn::Set(Words(), philox::DropThreshold(dropout));
  const FloatVec keep_scale = hn::Set(d, philox::KeepScale(dropout));
  const FloatVec lowest = hn::Set(d, std::numeric_limits<float>::lowest());

  // Keys transposed and values in panels, for all blocks of queries.
  const size_t padded_keys = (seq_len + panel - 1) / panel * panel;
  float* keys = scratch;
  float* values = keys + width * padded_keys;
  float* tile = values + seq_len * packed_width;
  float* context = tile + kTile * kTile;
  float* largest = context + kTile * packed_width;
  float* sum = largest + kTile;
  float* correction = sum + kTile;
  uint32_t* words = reinterpret_cast<uint32_t*>(correction + kTile);
  float* wide = reinterpret_cast<float*>(words + kWordsOfRow);  // of bf16
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  PackTransposed(k.Row<T>(0), k.stride, width, seq_len, scale, keys,
                 width * panel);
  PackRows(v.Row<T>(0), v.stride, seq_len, width, 1.0f, values,
           seq_len * panel);

  for (size_t t0 = 0; t0 < seq_len; t0 += kTile) {
    const size_t rows = HWY_MIN(kTile, seq_len - t0);
    for (size_t r = 0; r < kTile; ++r) {
      largest[r] = std::numeric_limits<float>::lowest();
      sum[r] = 0;
    }
    const MatrixView q_rows =
        WideRows(q.Row<T>(t0), q.stride, rows, width, wide);
    for (size_t s0 = 0; s0 <= t0; s0 += kTile) {
      const size_t columns = HWY_MIN(kTile, seq_len - s0);
      MultiplyPanels(rows, q_rows, keys + s0 * width, width * panel, width,
                     /*add=*/false, tile, kTile, columns);
      // Keys that query t0 + r sees within this block.
      const auto seen = [&](size_t r) HWY_ATTR {
        return HWY_MIN(columns, t0 + r + 1 - s0);
      };
      for (size_t r = 0; r < rows; ++r) {
        const float* row = tile + r * kTile;
        FloatVec most = hn::Set(d, largest[r]);
        for (size_t i = 0; i < seen(r); i += lanes) {
          most =
              hn::Max(most, FirstOr(hn::LoadU(d, row + i), lowest, i, seen(r)));
        }
        const float before = largest[r];
        largest[r] = MaxLanes(most);
        correction[r] = before - largest[r];
      }
      for (size_t r = 0; r < rows; r += lanes) {
        hn::StoreU(Exp(hn::LoadU(d, correction + r)), d, correction + r);
      }
      for (size_t r = 0; r < rows; ++r) {
        float* row = tile + r * kTile;
        const FloatVec offset = hn::Set(d, largest[r]);
        const uint32_t* drawn =
            dropout > 0 ? DrawRow(stream, shape, h, t0 + r, s0, seen(r), words)
                        : nullptr;
        FloatVec sums = hn::Zero(d);
        for (size_t i = 0; i < columns; i += lanes) {
          FloatVec p = FirstOr(Exp(hn::Sub(hn::LoadU(d, row + i), offset)),
                               hn::Zero(d), i, seen(r));
          sums = hn::Add(sums, p);
          if (drawn != nullptr && i < seen(r)) {
            p = Drop(p, drawn + i, threshold, keep_scale);
          }
          hn::StoreU(p, d, row + i);
        }
        sum[r] = sum[r] * correction[r] + SumLanes(sums);
        if (s0 == 0) continue;
        const FloatVec factor = hn::Set(d, correction[r]);
        float* out = context + r * packed_width;
        for (size_t i = 0; i < sizes.vector_width; i += lanes) {
          hn::StoreU(hn::Mul(hn::LoadU(d, out + i), factor), d, out + i);
        }
      }
      MultiplyPanels(rows, {tile, kTile, 1}, values + s0 * panel,
                     seq_len * panel, columns, /*add=*/s0 > 0, context,
                     packed_width, sizes.vector_width);
    }
    for (size_t r = 0; r < rows; ++r) {
      const FloatVec inverse = hn::Set(d, 1.0f / sum[r]);
      const float* from = context + r * packed_width;
      T* to = y.Row<T>(t0 + r);
      ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
        StoreSome(hn::Mul(hn::LoadU(d, from + i), inverse), to + i, count);
      });
      lse[t0 + r] = largest[r] + std::log(sum[r]);
    }
  }
}

// Gradients of one head of keys and values and of the queries that use it.
template <typename T>
void BackwardGroup(const AttentionCall& attention, size_t b, size_t g,
                   float* scratch) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const AttentionShape& shape = attention.shape;
  const Tensor* slots = attention.call->slots;
  const Tensor* grads = attention.call->grads;
  const HeadSizes sizes(shape);
  const size_t seq_len = sizes.seq_len, width = sizes.width;
  const size_t panel = sizes.panel_columns, packed_width = sizes.packed_width;
  const size_t group = shape.num_heads / shape.num_kv_heads;
  const HeadRows k(slots[attention::kK], shape, b, g);
  const HeadRows v(slots[attention::kV], shape, b, g);
  const HeadRows dk(grads[attention::kK], shape, b, g);
  const HeadRows dv(grads[attention::kV], shape, b, g);
  const float dropout = attention.call->attrs->dropout;
  const DrawStream stream = StreamOf(attention, b);
  const WordVec threshold = hn::Set(Words(), philox::DropThreshold(dropout));
  const FloatVec keep_scale = hn::Set(d, philox::KeepScale(dropout));
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));

  const size_t block = kTile * packed_width;
  float* keys = scratch;                  // [W, 64] of j, scaled
  float* values = keys + block;           // [W, 64] of j
  float* key_rows = values + block;       // [64, W] of j, scaled
  float* query_rows = key_rows + block;   // [64, W] of i, scaled
  float* dy_rows = query_rows + block;    // [64, W] of i
  float* dk_sum = dy_rows + block;        // [64, W]
  float* dv_sum = dk_sum + block;         // [64, W]
  float* probs = dv_sum + block;          // [64, 64]
  float* dprobs = probs + kTile * kTile;  // [64, 64]
  uint32_t* words = reinterpret_cast<uint32_t*>(dprobs + kTile * kTile);
  // Of bf16: [64, W] of i twice, and [T, W] of every head of the group.
  float* q_wide = reinterpret_cast<float*>(words + kWordsOfRow);
  float* dy_wide = q_wide + block;
  float* dq_sums = dy_wide + block;

  for (size_t s0 = 0; s0 < seq_len; s0 += kTile) {
    const size_t columns = HWY_MIN(kTile, seq_len - s0);
    const T* k_rows = k.Row<T>(s0);
    const T* v_rows = v.Row<T>(s0);
    PackTransposed(k_rows, k.stride, width, columns, scale, keys,
                   width * panel);
    PackTransposed(v_rows, v.stride, width, columns, 1.0f, values,
                   width * panel);
    PackRows(k_rows, k.stride, columns, width, scale, key_rows,
             columns * panel);
    bool first = true;
    for (size_t h = g * group; h < (g + 1) * group; ++h) {
      const HeadRows q(slots[attention::kQ], shape, b, h);
      const HeadRows y(slots[attention::kY], shape, b, h);
      const HeadRows dy(grads[attention::kY], shape, b, h);
      const HeadRows dq(grads[attention::kQ], shape, b, h);
      const float* lse = slots[attention::kLse].as<float>() +
                         (b * shape.num_heads + h) * seq_len;
      for (size_t t0 = s0; t0 < seq_len; t0 += kTile) {
        const size_t rows = HWY_MIN(kTile, seq_len - t0);
        const MatrixView q_rows =
            WideRows(q.Row<T>(t0), q.stride, rows, width, q_wide);
        const MatrixView dy_view =
            WideRows(dy.Row<T>(t0), dy.stride, rows, width, dy_wide);
        MultiplyPanels(rows, q_rows, keys, width * panel, width,
                       /*add=*/false, probs, kTile, columns);
        MultiplyPanels(rows, dy_view, values, width * panel, width,
                       /*add=*/false, dprobs, kTile, columns);
        for (size_t r = 0; r < rows; ++r) {
          const size_t t = t0 + r;
          const size_t seen = HWY_MIN(columns, t + 1 - s0);
          float* p_row = probs + r * kTile;
          float* dp_row = dprobs + r * kTile;
          const T* y_row = y.Row<T>(t);
          const T* dy_row = dy.Row<T>(t);
          FloatVec dots = hn::Zero(d);
          ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
            dots = hn::MulAdd(LoadSome(dy_row + i, count),
                              LoadSome(y_row + i, count), dots);
          });
          const FloatVec dot = hn::Set(d, SumLanes(dots));
          const FloatVec offset = hn::Set(d, lse[t]);
          const uint32_t* drawn =
              dropout > 0 ? DrawRow(stream, shape, h, t, s0, seen, words)
                          : nullptr;
          for (size_t i = 0; i < columns; i += lanes) {
            const FloatVec p =
                FirstOr(Exp(hn::Sub(hn::LoadU(d, p_row + i), offset)),
                        hn::Zero(d), i, seen);
            FloatVec dropped = p;
            FloatVec dp =
                FirstOr(hn::LoadU(d, dp_row + i), hn::Zero(d), i, seen);
            if (drawn != nullptr && i < seen) {
              dropped = Drop(p, drawn + i, threshold, keep_scale);
              dp = Drop(dp, drawn + i, threshold, keep_scale);
            }
            hn::StoreU(dropped, d, p_row + i);
            hn::StoreU(hn::Mul(p, hn::Sub(dp, dot)), d, dp_row + i);
          }
        }
        if (dv.data != nullptr) {
          PackRows(dy.Row<T>(t0), dy.stride, rows, width, 1.0f, dy_rows,
                   rows * panel);
          MultiplyPanels(columns, {probs, 1, kTile}, dy_rows, rows * panel,
                         rows, !first, dv_sum, packed_width,
                         sizes.vector_width);
        }
        if (dk.data != nullptr) {
          PackRows(q.Row<T>(t0), q.stride, rows, width, scale, query_rows,
                   rows * panel);
          MultiplyPanels(columns, {dprobs, 1, kTile}, query_rows, rows * panel,
                         rows, !first, dk_sum, packed_width,
                         sizes.vector_width);
        }
        if (dq.data != nullptr) {
          const Sums sums =
              SumsOf(dq.Row<T>(t0), dq.stride,
                     dq_sums + ((h - g * group) * seq_len + t0) * width, width);
          MultiplyPanels(rows, {dprobs, kTile, 1}, key_rows, columns * panel,
                         columns, /*add=*/s0 > 0, sums.data, sums.stride,
                         width);
        }
        first = false;
      }
    }
    for (size_t s = 0; s < columns; ++s) {
      ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
        const size_t from = s * packed_width + i;
        if (dk.data != nullptr) {
          StoreSome(hn::LoadU(d, dk_sum + from), dk.Row<T>(s0 + s) + i, count);
        }
        if (dv.data != nullptr) {
          StoreSome(hn::LoadU(d, dv_sum + from), dv.Row<T>(s0 + s) + i, count);
        }
      });
    }
  }
  for (size_t h = g * group; h < (g + 1) * group; ++h) {
    const HeadRows dq(grads[attention::kQ], shape, b, h);
    if (dq.data == nullptr) break;
    const Sums sums =
        SumsOf(dq.Row<T>(0), dq.stride,
               dq_sums + (h - g * group) * seq_len * width, width);
    RoundSums(sums, dq.Row<T>(0), dq.stride, seq_len, width);
  }
}

void AttentionForwardHead(const AttentionCall& attention, size_t b, size_t h,
                          float* scratch) {
  WithElementType(attention.shape.dtype, [&](auto element) {
    ForwardHead<decltype(element)>(attention, b, h, scratch);
  });
}

void AttentionBackwardGroup(const AttentionCall& attention, size_t b, size_t g,
                            float* scratch) {
  WithElementType(attention.shape.dtype, [&](auto element) {
    BackwardGroup<decltype(element)>(attention, b, g, scratch);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {
namespace {

HWY_EXPORT(AttentionForwardHead);
HWY_EXPORT(AttentionBackwardGroup);

AttentionCall MakeAttentionCall(const OpCall& call) {
  return {.call = &call,
          .shape = ShapeFromQuery(*call.attrs, call.slots[attention::kQ].type),
          .key = philox::Key(call.scalars->seed, call.value_key)};
}

float* ScratchOf(const OpCall& call, int thread, int64_t bytes) {
  return reinterpret_cast<float*>(static_cast<char*>(call.workspace) +
                                  thread * bytes);
}

}  // namespace

void AttentionForward(const OpCall& call, Stream) {
  const AttentionCall attention = MakeAttentionCall(call);
  const AttentionShape& shape = attention.shape;
  const int64_t bytes = AttentionForwardScratchBytes(shape);
  ParallelFor(shape.num_sequences * shape.num_heads, 1,
              static_cast<int>(call.workspace_bytes / bytes),
              [&](int64_t begin, int64_t end, int thread) {
                for (int64_t i = begin; i < end; ++i) {
                  HWY_DYNAMIC_DISPATCH(AttentionForwardHead)
                  (attention, i / shape.num_heads, i % shape.num_heads,
                   ScratchOf(call, thread, bytes));
                }
              });
}

void AttentionBackward(const OpCall& call, Stream) {
  const AttentionCall attention = MakeAttentionCall(call);
  const AttentionShape& shape = attention.shape;
  const int64_t bytes = AttentionBackwardScratchBytes(shape);
  ParallelFor(shape.num_sequences * shape.num_kv_heads, 1,
              static_cast<int>(call.workspace_bytes / bytes),
              [&](int64_t begin, int64_t end, int thread) {
                for (int64_t i = begin; i < end; ++i) {
                  HWY_DYNAMIC_DISPATCH(AttentionBackwardGroup)
                  (attention, i / shape.num_kv_heads, i % shape.num_kv_heads,
                   ScratchOf(call, thread, bytes));
                }
              });
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
