// Scratch of the kernels that need some: upper bounds that the CPU kernels
// live in. Each `...WorkspaceBytes` is an OpDef::workspace_bytes: bound == 0
// means the forward kernel, otherwise the backward kernel that computes those
// gradients.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops/attention_shape.h"
#include "kernels/ops/op_def.h"

namespace ebb {

// Blocks of the CPU backend's own product C [m, n] of sums over a depth k.
constexpr int64_t kStridedBlockRows = 144;
constexpr int64_t kStridedBlockColumns = 384;
constexpr int64_t kStridedBlockDepth = 256;
// Blocks of depth whose panels are packed at once: C comes from memory and goes
// back once for all of them.
constexpr int64_t kStridedBlocksAtOnce = 4;
// Rows of a bf16 result whose sums wait to be rounded, if they take more.
constexpr int64_t kStridedWaitingRows = 8 * kStridedBlockRows;

// Sizes of a product's blocks, none larger than the product, and what one
// thread holds for all of it or for a part: packed blocks of both operands and,
// if C is bf16, fp32 sums.
struct StridedSizes {
  int64_t blocks = 0;                        // of depth, packed at once
  int64_t rows = 0, columns = 0, depth = 0;  // of a block: whole tiles, panels
  int64_t sum_rows = 0;                      // 0: sums are formed in C

  constexpr StridedSizes(DType c_dtype, int64_t m, int64_t n, int64_t k,
                         int64_t num_terms = 1) {
    const auto whole = [](int64_t size, int64_t multiple) {
      return (size + multiple - 1) / multiple * multiple;
    };
    const int64_t all_blocks =
        num_terms * ((k + kStridedBlockDepth - 1) / kStridedBlockDepth);
    blocks = std::min(all_blocks, kStridedBlocksAtOnce);
    rows = std::min(kStridedBlockRows, whole(m, 48));
    columns = std::min(kStridedBlockColumns, whole(n, 64));
    depth = std::min(kStridedBlockDepth, whole(k, 16));
    if (c_dtype != DType::kBf16) return;
    sum_rows = all_blocks > blocks ? std::min(kStridedWaitingRows, whole(m, 48))
                                   : rows;
  }
  constexpr int64_t bytes() const {
    return 4 * ((blocks * columns + rows) * depth + sum_rows * columns);
  }
};

// One thread's scratch for the products of unfused attention.
int64_t AttentionProductBytes(const AttentionShape& shape);

// Queries and keys of a tile of fused attention.
constexpr int64_t kAttentionTile = 64;
// Words drawn for a row of a tile: its elements and what a vector of blocks
// adds.
constexpr int64_t kWordsOfRow = kAttentionTile + 512;
// One thread's scratch for one head.
int64_t AttentionForwardScratchBytes(const AttentionShape& shape);
int64_t AttentionBackwardScratchBytes(const AttentionShape& shape);

// One thread's scratch of rope: frequencies in double, cosines and sines in
// fp32, each of head_width / 2 elements in whole vectors.
int64_t RopeScratchBytes(int64_t head_width);

int64_t LinearWorkspaceBytes(const OpAttrs& attrs, Types types, uint32_t bound,
                             const Backend& backend);
int64_t AttentionScoresWorkspaceBytes(const OpAttrs& attrs, Types types,
                                      uint32_t bound, const Backend& backend);
int64_t AttentionContextWorkspaceBytes(const OpAttrs& attrs, Types types,
                                       uint32_t bound, const Backend& backend);
int64_t RopeWorkspaceBytes(const OpAttrs& attrs, Types types, uint32_t bound,
                           const Backend& backend);
int64_t AttentionWorkspaceBytes(const OpAttrs& attrs, Types types,
                                uint32_t bound, const Backend& backend);

}  // namespace ebb
