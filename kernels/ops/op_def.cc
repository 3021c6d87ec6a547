// The table of descriptions.
#include "kernels/ops/op_def.h"

#include <array>

#include "kernels/ops/adamw.h"
#include "kernels/ops/add.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/attention_context.h"
#include "kernels/ops/attention_scores.h"
#include "kernels/ops/causal_softmax.h"
#include "kernels/ops/clip_scale.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/decode.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/encode.h"
#include "kernels/ops/fill_zero.h"
#include "kernels/ops/gelu.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/position_embedding.h"
#include "kernels/ops/relu.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/squared_norm.h"
#include "kernels/ops/sum.h"
#include "kernels/ops/swiglu.h"

namespace ebb {
namespace {

// In the order of the enum.
constexpr const OpDef* kOpDefs[] = {
    &embedding::kDef,
    &position_embedding::kDef,
    &rope::kDef,
    &layer_norm::kDef,
    &rms_norm::kDef,
    &linear::kDef,
    &attention_scores::kDef,
    &causal_softmax::kDef,
    &attention_context::kDef,
    &attention::kDef,
    &gelu::kDef,
    &relu::kDef,
    &swiglu::kDef,
    &dropout::kDef,
    &add::kDef,
    &cross_entropy::kDef,
    &sum::kDef,
    &fill_zero::kDef,
    &squared_norm::kDef,
    &clip_scale::kDef,
    &adamw::kDef,
    &encode::kDef,
    &decode::kDef,
};
static_assert(std::size(kOpDefs) == kNumOps, "an op without a description");

}  // namespace

const OpDef& GetOpDef(Op op) { return *kOpDefs[static_cast<int>(op)]; }

}  // namespace ebb
