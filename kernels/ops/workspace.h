// Scratch of the kernels that need some: upper bounds that the CPU kernels
// live in. Each `...WorkspaceBytes` is an OpDef::workspace_bytes: bound == 0
// means the forward kernel, otherwise the backward kernel that computes those
// gradients.
#pragma once

#include <cstdint>

#include "kernels/ops/attention_shape.h"
#include "kernels/ops/op_def.h"

namespace ebb {

// Packed blocks of both operands that one thread holds in a product of the
// CPU backend's own, whatever its shape: (144 + 384) x 128 floats.
constexpr int64_t kStridedProductBytes = (144 + 384) * 128 * 4;

// Queries and keys of a tile of fused attention.
constexpr int64_t kAttentionTile = 64;
// One thread's scratch for one head.
int64_t AttentionForwardScratchBytes(const AttentionShape& shape);
int64_t AttentionBackwardScratchBytes(const AttentionShape& shape);

int64_t LinearWorkspaceBytes(const OpAttrs& attrs, Types types, uint32_t bound,
                             const Backend& backend);
int64_t AttentionScoresWorkspaceBytes(const OpAttrs& attrs, Types types,
                                      uint32_t bound, const Backend& backend);
int64_t AttentionContextWorkspaceBytes(const OpAttrs& attrs, Types types,
                                       uint32_t bound, const Backend& backend);
int64_t AttentionWorkspaceBytes(const OpAttrs& attrs, Types types,
                                uint32_t bound, const Backend& backend);

}  // namespace ebb
