// The CPU backend's kernels by op. All compute in fp32, on elements stored in
// fp32 or bf16.
#include "kernels/kernel_table.h"

#include <array>

#include "kernels/cpu/kernels.h"

namespace ebb {
namespace {

// Rows of a kernel that looks at its tensors' types, for both precisions.
constexpr std::array<KernelRow, 2> InBoth(Kernel forward, Kernel backward) {
  return {KernelRow{DType::kF32, forward, backward},
          KernelRow{DType::kBf16, forward, backward}};
}

constexpr auto kEmbedding =
    InBoth(cpu::EmbeddingForward, cpu::EmbeddingBackward);
constexpr auto kPositionEmbedding =
    InBoth(cpu::PositionEmbeddingForward, cpu::PositionEmbeddingBackward);
constexpr auto kLayerNorm =
    InBoth(cpu::LayerNormForward, cpu::LayerNormBackward);
constexpr auto kRmsNorm = InBoth(cpu::RmsNormForward, cpu::RmsNormBackward);
constexpr auto kRope = InBoth(cpu::RopeForward, cpu::RopeBackward);
constexpr auto kLinear = InBoth(cpu::LinearForward, cpu::LinearBackward);
constexpr auto kAttentionScores =
    InBoth(cpu::AttentionScoresForward, cpu::AttentionScoresBackward);
constexpr auto kCausalSoftmax =
    InBoth(cpu::CausalSoftmaxForward, cpu::CausalSoftmaxBackward);
constexpr auto kAttentionContext =
    InBoth(cpu::AttentionContextForward, cpu::AttentionContextBackward);
constexpr auto kAttention =
    InBoth(cpu::AttentionForward, cpu::AttentionBackward);
constexpr auto kGelu = InBoth(cpu::GeluForward, cpu::GeluBackward);
constexpr auto kRelu = InBoth(cpu::ReluForward, cpu::ReluBackward);
constexpr auto kSwiglu = InBoth(cpu::SwigluForward, cpu::SwigluBackward);
constexpr auto kDropout = InBoth(cpu::DropoutForward, cpu::DropoutBackward);
// Both gradients of add pass through.
constexpr auto kAdd = InBoth(cpu::AddForward, nullptr);
constexpr auto kCrossEntropy =
    InBoth(cpu::CrossEntropyForward, cpu::CrossEntropyBackward);
// What sees no activations is the same in both.
constexpr auto kSum = InBoth(cpu::SumUpdate, nullptr);
constexpr auto kFillZero = InBoth(cpu::FillZeroUpdate, nullptr);
constexpr auto kSquaredNorm = InBoth(cpu::SquaredNormUpdate, nullptr);
constexpr auto kClipScale = InBoth(cpu::ClipScaleUpdate, nullptr);
constexpr auto kAdamw = InBoth(cpu::AdamwUpdate, nullptr);
// No gradient goes through what is encoded: backward reads it.
constexpr auto kEncode = InBoth(cpu::EncodeForward, nullptr);
constexpr auto kDecode = InBoth(cpu::DecodeForward, nullptr);

constexpr KernelTable MakeTable() {
  KernelTable table;
  const auto row = [&](Op op) -> std::span<const KernelRow>& {
    return table.rows[static_cast<size_t>(op)];
  };
  row(Op::kEmbedding) = kEmbedding;
  row(Op::kPositionEmbedding) = kPositionEmbedding;
  row(Op::kRope) = kRope;
  row(Op::kLayerNorm) = kLayerNorm;
  row(Op::kRmsNorm) = kRmsNorm;
  row(Op::kLinear) = kLinear;
  row(Op::kAttentionScores) = kAttentionScores;
  row(Op::kCausalSoftmax) = kCausalSoftmax;
  row(Op::kAttentionContext) = kAttentionContext;
  row(Op::kAttention) = kAttention;
  row(Op::kGelu) = kGelu;
  row(Op::kRelu) = kRelu;
  row(Op::kSwiglu) = kSwiglu;
  row(Op::kDropout) = kDropout;
  row(Op::kAdd) = kAdd;
  row(Op::kCrossEntropy) = kCrossEntropy;
  row(Op::kSum) = kSum;
  row(Op::kFillZero) = kFillZero;
  row(Op::kSquaredNorm) = kSquaredNorm;
  row(Op::kClipScale) = kClipScale;
  row(Op::kAdamw) = kAdamw;
  row(Op::kEncode) = kEncode;
  row(Op::kDecode) = kDecode;
  static_assert(kNumOps == 23, "every op has a line here");
  return table;
}

constexpr KernelTable kTable = MakeTable();

}  // namespace

const KernelTable& CpuKernelTable() { return kTable; }

}  // namespace ebb
