// The CPU backend's kernels by op. All compute in fp32; ops on totals are
// listed under the type of what they read and under that of their totals.
#include "kernels/kernel_table.h"

#include "kernels/cpu/kernels.h"

namespace ebb {
namespace {

constexpr KernelRow kEmbedding[] = {
    {DType::kF32, cpu::EmbeddingForward, cpu::EmbeddingBackward}};
constexpr KernelRow kPositionEmbedding[] = {{DType::kF32,
                                             cpu::PositionEmbeddingForward,
                                             cpu::PositionEmbeddingBackward}};
constexpr KernelRow kLayerNorm[] = {
    {DType::kF32, cpu::LayerNormForward, cpu::LayerNormBackward}};
constexpr KernelRow kLinear[] = {
    {DType::kF32, cpu::LinearForward, cpu::LinearBackward}};
constexpr KernelRow kAttentionScores[] = {
    {DType::kF32, cpu::AttentionScoresForward, cpu::AttentionScoresBackward}};
constexpr KernelRow kCausalSoftmax[] = {
    {DType::kF32, cpu::CausalSoftmaxForward, cpu::CausalSoftmaxBackward}};
constexpr KernelRow kAttentionContext[] = {
    {DType::kF32, cpu::AttentionContextForward, cpu::AttentionContextBackward}};
constexpr KernelRow kAttention[] = {
    {DType::kF32, cpu::AttentionForward, cpu::AttentionBackward}};
constexpr KernelRow kGelu[] = {
    {DType::kF32, cpu::GeluForward, cpu::GeluBackward}};
constexpr KernelRow kDropout[] = {
    {DType::kF32, cpu::DropoutForward, cpu::DropoutBackward}};
// Both gradients of add pass through.
constexpr KernelRow kAdd[] = {{DType::kF32, cpu::AddForward, nullptr}};
constexpr KernelRow kCrossEntropy[] = {
    {DType::kF32, cpu::CrossEntropyForward, cpu::CrossEntropyBackward}};
constexpr KernelRow kSum[] = {{DType::kF32, cpu::SumUpdate, nullptr}};
constexpr KernelRow kFillZero[] = {{DType::kF32, cpu::FillZeroUpdate, nullptr},
                                   {DType::kF64, cpu::FillZeroUpdate, nullptr}};
constexpr KernelRow kSquaredNorm[] = {
    {DType::kF32, cpu::SquaredNormUpdate, nullptr}};
constexpr KernelRow kClipScale[] = {
    {DType::kF32, cpu::ClipScaleUpdate, nullptr},
    {DType::kF64, cpu::ClipScaleUpdate, nullptr}};
constexpr KernelRow kAdamw[] = {{DType::kF32, cpu::AdamwUpdate, nullptr}};

constexpr KernelTable MakeTable() {
  KernelTable table;
  const auto row = [&](Op op) -> std::span<const KernelRow>& {
    return table.rows[static_cast<size_t>(op)];
  };
  row(Op::kEmbedding) = kEmbedding;
  row(Op::kPositionEmbedding) = kPositionEmbedding;
  row(Op::kLayerNorm) = kLayerNorm;
  row(Op::kLinear) = kLinear;
  row(Op::kAttentionScores) = kAttentionScores;
  row(Op::kCausalSoftmax) = kCausalSoftmax;
  row(Op::kAttentionContext) = kAttentionContext;
  row(Op::kAttention) = kAttention;
  row(Op::kGelu) = kGelu;
  row(Op::kDropout) = kDropout;
  row(Op::kAdd) = kAdd;
  row(Op::kCrossEntropy) = kCrossEntropy;
  row(Op::kSum) = kSum;
  row(Op::kFillZero) = kFillZero;
  row(Op::kSquaredNorm) = kSquaredNorm;
  row(Op::kClipScale) = kClipScale;
  row(Op::kAdamw) = kAdamw;
  static_assert(kNumOps == 17, "every op has a line here");
  return table;
}

constexpr KernelTable kTable = MakeTable();

}  // namespace

const KernelTable& CpuKernelTable() { return kTable; }

}  // namespace ebb
