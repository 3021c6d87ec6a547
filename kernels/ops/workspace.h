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

// Blocks of depth that a product of `num_terms` terms packs at once.
constexpr int64_t StridedBlocks(int64_t k, int64_t num_terms) {
  const int64_t blocks =
      num_terms * ((k + kStridedBlockDepth - 1) / kStridedBlockDepth);
  return std::min(blocks, kStridedBlocksAtOnce);
}
// What one thread holds, of its part of the result or of all of it: packed
// blocks of both operands and, if C is bf16, fp32 sums.
constexpr int64_t StridedProductBytes(DType c_dtype, int64_t m, int64_t k,
                                      int64_t num_terms = 1) {
  const int64_t blocks = StridedBlocks(k, num_terms);
  const bool wait = num_terms * k > kStridedBlocksAtOnce * kStridedBlockDepth;
  int64_t floats =
      (blocks * kStridedBlockColumns + kStridedBlockRows) * kStridedBlockDepth;
  if (c_dtype == DType::kBf16) {
    floats += kStridedBlockColumns *
              (wait ? std::min(kStridedWaitingRows,
                               (m + kStridedBlockRows - 1) / kStridedBlockRows *
                                   kStridedBlockRows)
                    : kStridedBlockRows);
  }
  return 4 * floats;
}

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
