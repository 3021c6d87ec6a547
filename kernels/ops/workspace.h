// Scratch of the kernels that need some: upper bounds that the CPU kernels
// live in. Each `...WorkspaceBytes` is an OpDef::workspace_bytes: bound == 0
// means the forward kernel, otherwise the backward kernel that computes those
// gradients.
#pragma once

#include <cstdint>

#include "kernels/ops/attention_shape.h"
#include "kernels/ops/op_def.h"

namespace ebb {

// What one thread holds in a product of the CPU backend's own, whatever its
// shape: packed blocks of both operands, (144 + 384) x 256 floats, and for a
// bf16 result the sums of 432 x 384 elements that wait to be rounded.
constexpr int64_t StridedProductBytes(DType dtype) {
  return 4 * ((144 + 384) * 256 + (dtype == DType::kBf16 ? 432 * 384 : 0));
}

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
