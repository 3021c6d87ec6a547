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

void AttentionContextForward(const OpCall& call, Stream) {
  const Tensor& probs = call.slots[attention_context::kProbs];
  const AttentionShape shape =
      ShapeFromQuery(*call.attrs, call.slots[attention_context::kY].type);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const ThreadScratch scratch(call, AttentionProductBytes(shape));
  ParallelFor(shape.num_sequences * shape.num_heads, 1, scratch.max_threads(),
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
                                   .dtype = shape.dtype,
                                   .a = HeadScores(probs, shape, b, h),
                                   .a_stride = shape.seq_len,
                                   .b = v.data,
                                   .b_stride = v.stride,
                                   .c_dtype = shape.dtype,
                                   .c = y.data,
                                   .c_stride = y.stride},
                                  scratch.Of(thread));
                }
              });
}

void AttentionContextBackward(const OpCall& call, Stream) {
  const Tensor& dy_view = call.grads[attention_context::kY];
  const Tensor& dprobs = call.grads[attention_context::kProbs];
  const Tensor& dv_view = call.grads[attention_context::kV];
  const AttentionShape shape = ShapeFromQuery(*call.attrs, dy_view.type);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const ThreadScratch scratch(call, AttentionProductBytes(shape));
  // Gradients of one head of values and of the probabilities that weight it.
  const auto backward = [&](int64_t b, int64_t g, void* thread_scratch) {
    const HeadRows v(call.slots[attention_context::kV], shape, b, g);
    for (int64_t h = g * group; dprobs.bound() && h < (g + 1) * group; ++h) {
      const HeadRows dy(dy_view, shape, b, h);
      MultiplyStrided({.m = shape.seq_len,
                       .n = shape.seq_len,
                       .k = shape.head_width,
                       .dtype = shape.dtype,
                       .a = dy.data,
                       .a_stride = dy.stride,
                       .b = v.data,
                       .b_stride = v.stride,
                       .b_transposed = true,
                       .c_dtype = shape.dtype,
                       .c = HeadScores(dprobs, shape, b, h),
                       .c_stride = shape.seq_len},
                      thread_scratch);
    }
    if (!dv_view.bound()) return;
    const HeadRows dy(dy_view, shape, b, g * group);
    const HeadRows dv(dv_view, shape, b, g);
    MultiplyStrided({.m = shape.seq_len,
                     .n = shape.head_width,
                     .k = shape.seq_len,
                     .dtype = shape.dtype,
                     .a = HeadScores(call.slots[attention_context::kProbs],
                                     shape, b, g * group),
                     .a_stride = shape.seq_len,
                     .a_transposed = true,
                     .b = dy.data,
                     .b_stride = dy.stride,
                     .c_dtype = shape.dtype,
                     .c = dv.data,
                     .c_stride = dv.stride,
                     .num_terms = group,
                     .a_term_stride = shape.seq_len * shape.seq_len,
                     .b_term_stride = shape.head_width},
                    thread_scratch);
  };
  ParallelFor(shape.num_sequences * shape.num_kv_heads, 1,
              scratch.max_threads(),
              [&](int64_t begin, int64_t end, int thread) {
                for (int64_t i = begin; i < end; ++i) {
                  backward(i / shape.num_kv_heads, i % shape.num_kv_heads,
                           scratch.Of(thread));
                }
              });
}

}  // namespace ebb::cpu
