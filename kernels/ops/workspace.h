// Scratch of the kernels that need some: upper bounds that the CPU kernels
// live in. Each is an OpDef::workspace_bytes: bound == 0 means the forward
// kernel, otherwise the backward kernel that computes those gradients.
#pragma once

#include <cstdint>

#include "kernels/ops/op_def.h"

namespace ebb {

int64_t LinearWorkspaceBytes(const OpAttrs& attrs, Types types, uint32_t bound,
                             const Backend& backend);
int64_t AttentionScoresWorkspaceBytes(const OpAttrs& attrs, Types types,
                                      uint32_t bound, const Backend& backend);
int64_t AttentionContextWorkspaceBytes(const OpAttrs& attrs, Types types,
                                       uint32_t bound, const Backend& backend);
int64_t AttentionWorkspaceBytes(const OpAttrs& attrs, Types types,
                                uint32_t bound, const Backend& backend);
int64_t LayerNormWorkspaceBytes(const OpAttrs& attrs, Types types,
                                uint32_t bound, const Backend& backend);
int64_t EmbeddingWorkspaceBytes(const OpAttrs& attrs, Types types,
                                uint32_t bound, const Backend& backend);
int64_t SquaredNormWorkspaceBytes(const OpAttrs& attrs, Types types,
                                  uint32_t bound, const Backend& backend);

}  // namespace ebb
