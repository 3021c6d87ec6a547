// Scratch of the kernels that need some.
#include "kernels/ops/workspace.h"

#include <algorithm>

#include "kernels/ops/attention.h"
#include "kernels/ops/attention_context.h"
#include "kernels/ops/attention_scores.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/rope.h"

namespace ebb {
namespace {

constexpr int64_t RoundUp(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// Largest scratch a thread of oneDNN 2.6's products of bf16 operands: both
// repacked by blocks, and a block of fp32 sums. 1721344 in forward and input
// gradient, 1393664 in the weight gradient. Teams of eight and more may want
// tens of megabytes a thread there, for sums of their own: such a product is
// widened instead.
constexpr int64_t kBf16ProductBytes = int64_t{1728} << 10;

// Elements of the widest vector.
constexpr int64_t kWidestVector = 16;
// Columns of the widest panel of packed operands: four AVX-512 vectors.
constexpr int64_t kWidestPanel = 64;

}  // namespace

int64_t LinearWorkspaceBytes(const OpAttrs&, Types types, uint32_t bound,
                             const Backend& backend) {
  const DType dtype = types[linear::kY].dtype;
  const int64_t rows = types[linear::kX].dims[0];
  const int64_t outputs = types[linear::kWeight].dims[0];
  const int64_t inputs = types[linear::kWeight].dims[1];
  int64_t bytes = 0;
  const auto add = [&](const StridedSizes& sizes) {
    bytes = std::max(bytes, sizes.bytes());
  };
  if (bound == 0) add({dtype, rows, outputs, inputs});
  if (HasSlot(bound, linear::kX)) add({dtype, rows, inputs, outputs});
  if (HasSlot(bound, linear::kWeight)) {
    add({DType::kF32, outputs, inputs, rows});
  }
  if (dtype == DType::kBf16 && HasBf16Products(backend.instruction_set)) {
    bytes = std::max(bytes, kBf16ProductBytes);
  }
  return backend.threads * bytes;
}

// Of all products of a group's heads; the largest sums gradients over them.
int64_t AttentionProductBytes(const AttentionShape& shape) {
  const int64_t longest = std::max(shape.seq_len, shape.head_width);
  return StridedSizes(shape.dtype, shape.seq_len, longest, longest,
                      shape.num_heads / shape.num_kv_heads)
      .bytes();
}

int64_t AttentionScoresWorkspaceBytes(const OpAttrs& attrs, Types types,
                                      uint32_t, const Backend& backend) {
  return backend.threads * AttentionProductBytes(ShapeFromQuery(
                               attrs, types[attention_scores::kQ]));
}

int64_t AttentionContextWorkspaceBytes(const OpAttrs& attrs, Types types,
                                       uint32_t, const Backend& backend) {
  return backend.threads * AttentionProductBytes(ShapeFromQuery(
                               attrs, types[attention_context::kY]));
}

int64_t RopeScratchBytes(int64_t head_width) {
  return AlignUp((8 + 4 + 4) * RoundUp(head_width / 2, kWidestVector));
}

int64_t RopeWorkspaceBytes(const OpAttrs& attrs, Types types, uint32_t,
                           const Backend& backend) {
  const int64_t head_width =
      types[rope::kX].dims[1] / (attrs.num_heads + 2 * attrs.num_kv_heads);
  return std::min<int64_t>(backend.threads, types[rope::kX].dims[0]) *
         RopeScratchBytes(head_width);
}

// Keys and values of a head in panels, one tile, its context, three numbers a
// row and the words drawn; of bf16 a block of widened queries.
int64_t AttentionForwardScratchBytes(const AttentionShape& shape) {
  const int64_t width = RoundUp(shape.head_width, kWidestPanel);
  const int64_t keys = RoundUp(shape.seq_len, kWidestPanel);
  return AlignUp(4 *
                 (2 * keys * width + kAttentionTile * kAttentionTile +
                  kAttentionTile * width + 3 * kAttentionTile + kWordsOfRow +
                  (shape.dtype == DType::kBf16 ? kAttentionTile * width : 0)));
}

// Seven blocks of 64 rows or columns, two tiles and the words drawn; of bf16
// blocks of widened queries and gradients, and the sums of dq of a group's
// heads.
int64_t AttentionBackwardScratchBytes(const AttentionShape& shape) {
  const int64_t width = RoundUp(shape.head_width, kWidestPanel);
  int64_t floats = 7 * kAttentionTile * width +
                   2 * kAttentionTile * kAttentionTile + kWordsOfRow;
  if (shape.dtype == DType::kBf16) {
    const int64_t group = shape.num_heads / shape.num_kv_heads;
    floats += 2 * kAttentionTile * width + group * shape.seq_len * width;
  }
  return AlignUp(4 * floats);
}

int64_t AttentionWorkspaceBytes(const OpAttrs& attrs, Types types,
                                uint32_t bound, const Backend& backend) {
  const AttentionShape shape = ShapeFromQuery(attrs, types[attention::kQ]);
  const int64_t heads = bound == 0 ? shape.num_heads : shape.num_kv_heads;
  const int64_t threads =
      std::min<int64_t>(backend.threads, shape.num_sequences * heads);
  return threads * (bound == 0 ? AttentionForwardScratchBytes(shape)
                               : AttentionBackwardScratchBytes(shape));
}

}  // namespace ebb
