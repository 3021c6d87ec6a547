// The reference kernels by name, as the table and each other see them.
#pragma once

#include "kernels/testing/reference.h"

namespace ebb::reference {

// reference_layers.cc
void EmbeddingForward(Call& c);
void EmbeddingBackward(Call& c);
void PositionEmbeddingForward(Call& c);
void PositionEmbeddingBackward(Call& c);
void LayerNormForward(Call& c);
void LayerNormBackward(Call& c);
void RmsNormForward(Call& c);
void RmsNormBackward(Call& c);
void RopeForward(Call& c);
void RopeBackward(Call& c);
void LinearForward(Call& c);
void LinearBackward(Call& c);
void GeluForward(Call& c);
void GeluBackward(Call& c);
void ReluForward(Call& c);
void ReluBackward(Call& c);
void SwigluForward(Call& c);
void SwigluBackward(Call& c);
void DropoutForward(Call& c);
void DropoutBackward(Call& c);
void AddForward(Call& c);
void CrossEntropyForward(Call& c);
void CrossEntropyBackward(Call& c);

// reference_attention.cc
void AttentionScoresForward(Call& c);
void AttentionScoresBackward(Call& c);
void CausalSoftmaxForward(Call& c);
void CausalSoftmaxBackward(Call& c);
void AttentionContextForward(Call& c);
void AttentionContextBackward(Call& c);
void AttentionForward(Call& c);
void AttentionBackward(Call& c);

// reference_update.cc
void SumForward(Call& c);
void FillZeroForward(Call& c);
void SquaredNormForward(Call& c);
void ClipScaleForward(Call& c);
void AdamwForward(Call& c);

// reference_encode.cc
void EncodeForward(Call& c);
void DecodeForward(Call& c);

}  // namespace ebb::reference
