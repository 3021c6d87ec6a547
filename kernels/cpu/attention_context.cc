// Probabilities times values: every head's product on one thread, straight
// from the strided views.
//   dprobs = dy v^T      dv = sum over the group's heads of probs^T dy, heads
//                             in order
#include "kernels/ops/attention_context.h"

#include "kernels/cpu/head_views.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/strided_product.h"
#include "kernels/cpu/thread_team.h"

namespace ebb::cpu {
namespace {

int MaxThreads(const OpCall& call) {
  return static_cast<int>(call.workspace_bytes / StridedProductScratchBytes());
}

void* ScratchOf(const OpCall& call, int thread) {
  return static_cast<char*>(call.workspace) +
         thread * StridedProductScratchBytes();
}

}  // namespace

void AttentionContextForward(const OpCall& call, Stream) {
  const Tensor& probs = call.slots[attention_context::kProbs];
  const AttentionShape shape =
      ShapeFromQuery(*call.attrs, call.slots[attention_context::kY].type);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  ParallelFor(shape.num_sequences * shape.num_heads, 1, MaxThreads(call),
              [&](int64_t begin, int64_t end, int thread) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t b = i / shape.num_heads;
                  const int64_t h = i % shape.num_heads;
                  const HeadRows v(call.slots[attention_context::kV], shape, b,
                                   h / group);
                  const HeadRows y(call.slots[attention_context::kY], shape, b,
                                   h);
                  MultiplyStrided({.m = shape.seq_len,
                                   .n = shape.head_width,
                                   .k = shape.seq_len,
                                   .a = HeadScores(probs, shape, b, h),
                                   .a_stride = shape.seq_len,
                                   .b = v.data,
                                   .b_stride = v.stride,
                                   .c = y.data,
                                   .c_stride = y.stride},
                                  ScratchOf(call, thread));
                }
              });
}

void AttentionContextBackward(const OpCall& call, Stream) {
  const Tensor& dy_view = call.grads[attention_context::kY];
  const Tensor& dprobs = call.grads[attention_context::kProbs];
  const Tensor& dv_view = call.grads[attention_context::kV];
  const AttentionShape shape = ShapeFromQuery(*call.attrs, dy_view.type);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  ParallelFor(
      shape.num_sequences * shape.num_kv_heads, 1, MaxThreads(call),
      [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t b = i / shape.num_kv_heads;
          const int64_t g = i % shape.num_kv_heads;
          for (int64_t h = g * group; h < (g + 1) * group; ++h) {
            const HeadRows dy(dy_view, shape, b, h);
            if (dprobs.bound()) {
              const HeadRows v(call.slots[attention_context::kV], shape, b, g);
              MultiplyStrided({.m = shape.seq_len,
                               .n = shape.seq_len,
                               .k = shape.head_width,
                               .a = dy.data,
                               .a_stride = dy.stride,
                               .b = v.data,
                               .b_stride = v.stride,
                               .b_transposed = true,
                               .c = HeadScores(dprobs, shape, b, h),
                               .c_stride = shape.seq_len},
                              ScratchOf(call, thread));
            }
            if (dv_view.bound()) {
              const HeadRows dv(dv_view, shape, b, g);
              MultiplyStrided(
                  {.m = shape.seq_len,
                   .n = shape.head_width,
                   .k = shape.seq_len,
                   .a = HeadScores(call.slots[attention_context::kProbs], shape,
                                   b, h),
                   .a_stride = shape.seq_len,
                   .a_transposed = true,
                   .b = dy.data,
                   .b_stride = dy.stride,
                   .c = dv.data,
                   .c_stride = dv.stride,
                   .add = h > g * group},
                  ScratchOf(call, thread));
            }
          }
        }
      });
}

}  // namespace ebb::cpu
