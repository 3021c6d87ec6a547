// The list of ops. Tables are explicit arrays indexed by it. To add an op see
// kernels/README.md.
#pragma once

#include <cstdint>

namespace ebb {

enum class Op : uint8_t {
  kEmbedding,
  kPositionEmbedding,
  kRope,
  kLayerNorm,
  kRmsNorm,
  kLinear,
  kAttentionScores,
  kCausalSoftmax,
  kAttentionContext,
  kAttention,
  kGelu,
  kRelu,
  kSwiglu,
  kDropout,
  kAdd,
  kCrossEntropy,
  kSum,
  kFillZero,
  kSquaredNorm,
  kClipScale,
  kAdamw,
  kEncode,
  kDecode,
  kNumOps,
};

constexpr int kNumOps = static_cast<int>(Op::kNumOps);

}  // namespace ebb
