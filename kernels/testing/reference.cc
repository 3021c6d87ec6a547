// The table of reference kernels.
#include "kernels/testing/reference.h"

#include <iterator>

#include "kernels/ops/op_def.h"
#include "kernels/testing/reference_kernels.h"

namespace ebb::reference {
namespace {

// In the order of the enum.
constexpr Kernels kKernels[] = {
    {EmbeddingForward, EmbeddingBackward},
    {PositionEmbeddingForward, PositionEmbeddingBackward},
    {RopeForward, RopeBackward},
    {LayerNormForward, LayerNormBackward},
    {RmsNormForward, RmsNormBackward},
    {LinearForward, LinearBackward},
    {AttentionScoresForward, AttentionScoresBackward},
    {CausalSoftmaxForward, CausalSoftmaxBackward},
    {AttentionContextForward, AttentionContextBackward},
    {AttentionForward, AttentionBackward},
    {GeluForward, GeluBackward},
    {ReluForward, ReluBackward},
    {SwigluForward, SwigluBackward},
    {DropoutForward, DropoutBackward},
    {AddForward, nullptr},
    {CrossEntropyForward, CrossEntropyBackward},
    {SumForward, nullptr},
    {FillZeroForward, nullptr},
    {SquaredNormForward, nullptr},
    {ClipScaleForward, nullptr},
    {AdamwForward, nullptr},
    {EncodeForward, nullptr},
    {DecodeForward, nullptr},
};
static_assert(std::size(kKernels) == kNumOps, "an op without a reference");

}  // namespace

const Kernels& GetKernels(Op op) { return kKernels[static_cast<int>(op)]; }

void RunForward(Op op, Call& call) {
  const OpDef& def = GetOpDef(op);
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    const Role role = def.slots[slot].role;
    if (role == Role::kOutput || role == Role::kAux) {
      call.slots[slot].assign(call.types[slot].num_elements(), 0);
    }
  }
  GetKernels(op).forward(call);
}

}  // namespace ebb::reference
