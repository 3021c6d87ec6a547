// The CPU kernels, one file an op. Each computes what kernels/ops/<op>.h says
// in fp32 with Highway vectors on OpenMP's thread team, on elements stored in
// fp32 or bf16; matrix products go
// through kernels/cpu/matrix_product.h. kernel_table.cc lists them.
#pragma once

#include "kernels/op_call.h"

namespace ebb::cpu {

void EmbeddingForward(const OpCall& call, Stream);
void EmbeddingBackward(const OpCall& call, Stream);
void PositionEmbeddingForward(const OpCall& call, Stream);
void PositionEmbeddingBackward(const OpCall& call, Stream);
void LayerNormForward(const OpCall& call, Stream);
void LayerNormBackward(const OpCall& call, Stream);
void RmsNormForward(const OpCall& call, Stream);
void RmsNormBackward(const OpCall& call, Stream);
void RopeForward(const OpCall& call, Stream);
void RopeBackward(const OpCall& call, Stream);
void LinearForward(const OpCall& call, Stream);
void LinearBackward(const OpCall& call, Stream);
void AttentionScoresForward(const OpCall& call, Stream);
void AttentionScoresBackward(const OpCall& call, Stream);
void CausalSoftmaxForward(const OpCall& call, Stream);
void CausalSoftmaxBackward(const OpCall& call, Stream);
void AttentionContextForward(const OpCall& call, Stream);
void AttentionContextBackward(const OpCall& call, Stream);
void AttentionForward(const OpCall& call, Stream);
void AttentionBackward(const OpCall& call, Stream);
void GeluForward(const OpCall& call, Stream);
void GeluBackward(const OpCall& call, Stream);
void ReluForward(const OpCall& call, Stream);
void ReluBackward(const OpCall& call, Stream);
void SwigluForward(const OpCall& call, Stream);
void SwigluBackward(const OpCall& call, Stream);
void DropoutForward(const OpCall& call, Stream);
void DropoutBackward(const OpCall& call, Stream);
void AddForward(const OpCall& call, Stream);
void CrossEntropyForward(const OpCall& call, Stream);
void CrossEntropyBackward(const OpCall& call, Stream);
void SumUpdate(const OpCall& call, Stream);
void FillZeroUpdate(const OpCall& call, Stream);
void SquaredNormUpdate(const OpCall& call, Stream);
void ClipScaleUpdate(const OpCall& call, Stream);
void AdamwUpdate(const OpCall& call, Stream);
void EncodeForward(const OpCall& call, Stream);
void DecodeForward(const OpCall& call, Stream);

}  // namespace ebb::cpu
