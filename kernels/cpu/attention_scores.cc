// Products of queries and keys: every head's product on one thread, straight
// from the strided views.
//   dq = dscores k / sqrt(W)      dk = sum over the group's heads of
//                                      dscores^T q / sqrt(W), heads in order
#include "kernels/ops/attention_scores.h"

#include <cmath>

#include "kernels/cpu/head_views.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/strided_product.h"
#include "kernels/cpu/thread_team.h"

namespace ebb::cpu {
namespace {

float Scale(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_width));
}

}  // namespace

void AttentionScoresForward(const OpCall& call, Stream) {
  const Tensor& scores = call.slots[attention_scores::kScores];
  const AttentionShape shape =
      ShapeFromQuery(*call.attrs, call.slots[attention_scores::kQ].type);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const ThreadScratch scratch(call, AttentionProductBytes(shape));
  ParallelFor(shape.num_sequences * shape.num_heads, 1, scratch.max_threads(),
              [&](int64_t begin, int64_t end, int thread) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t b = i / shape.num_heads;
                  const int64_t h = i % shape.num_heads;
                  const HeadRows q(call.slots[attention_scores::kQ], shape, b,
                                   h);
                  const HeadRows k(call.slots[attention_scores::kK], shape, b,
                                   h / group);
                  MultiplyStrided({.m = shape.seq_len,
                                   .n = shape.seq_len,
                                   .k = shape.head_width,
                                   .dtype = shape.dtype,
                                   .a = q.data,
                                   .a_stride = q.stride,
                                   .b = k.data,
                                   .b_stride = k.stride,
                                   .b_transposed = true,
                                   .c_dtype = shape.dtype,
                                   .c = HeadScores(scores, shape, b, h),
                                   .c_stride = shape.seq_len,
                                   .factor = Scale(shape)},
                                  scratch.Of(thread));
                }
              });
}

void AttentionScoresBackward(const OpCall& call, Stream) {
  const Tensor& dscores = call.grads[attention_scores::kScores];
  const Tensor& dq_view = call.grads[attention_scores::kQ];
  const Tensor& dk_view = call.grads[attention_scores::kK];
  AttentionShape shape;
  if (dq_view.bound()) {
    shape = ShapeFromQuery(*call.attrs, dq_view.type);
  } else {
    shape = ShapeFromKey(*call.attrs, dk_view.type);
  }
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const ThreadScratch scratch(call, AttentionProductBytes(shape));
  // Gradients of one head of keys and of the queries that use it.
  const auto backward = [&](int64_t b, int64_t g, void* thread_scratch) {
    const StridedProduct product = {.m = shape.seq_len,
                                    .n = shape.head_width,
                                    .k = shape.seq_len,
                                    .dtype = shape.dtype,
                                    .a_stride = shape.seq_len,
                                    .c_dtype = shape.dtype,
                                    .factor = Scale(shape)};
    const HeadRows k(call.slots[attention_scores::kK], shape, b, g);
    for (int64_t h = g * group; dq_view.bound() && h < (g + 1) * group; ++h) {
      const HeadRows dq(dq_view, shape, b, h);
      StridedProduct dq_product = product;
      dq_product.a = HeadScores(dscores, shape, b, h);
      dq_product.b = k.data;
      dq_product.b_stride = k.stride;
      dq_product.c = dq.data;
      dq_product.c_stride = dq.stride;
      MultiplyStrided(dq_product, thread_scratch);
    }
    if (!dk_view.bound()) return;
    const HeadRows q(call.slots[attention_scores::kQ], shape, b, g * group);
    const HeadRows dk(dk_view, shape, b, g);
    StridedProduct dk_product = product;
    dk_product.a = HeadScores(dscores, shape, b, g * group);
    dk_product.a_transposed = true;
    dk_product.b = q.data;
    dk_product.b_stride = q.stride;
    dk_product.c = dk.data;
    dk_product.c_stride = dk.stride;
    dk_product.num_terms = group;
    dk_product.a_term_stride = shape.seq_len * shape.seq_len;
    dk_product.b_term_stride = shape.head_width;
    MultiplyStrided(dk_product, thread_scratch);
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
