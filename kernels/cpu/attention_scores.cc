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

int MaxThreads(const OpCall& call) {
  return static_cast<int>(call.workspace_bytes / StridedProductScratchBytes());
}

void* ScratchOf(const OpCall& call, int thread) {
  return static_cast<char*>(call.workspace) +
         thread * StridedProductScratchBytes();
}

float Scale(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_width));
}

}  // namespace

void AttentionScoresForward(const OpCall& call, Stream) {
  const Tensor& scores = call.slots[attention_scores::kScores];
  const AttentionShape shape =
      ShapeFromQuery(*call.attrs, call.slots[attention_scores::kQ].type);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  ParallelFor(shape.num_sequences * shape.num_heads, 1, MaxThreads(call),
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
                                   .a = q.data,
                                   .a_stride = q.stride,
                                   .b = k.data,
                                   .b_stride = k.stride,
                                   .b_transposed = true,
                                   .c = HeadScores(scores, shape, b, h),
                                   .c_stride = shape.seq_len,
                                   .factor = Scale(shape)},
                                  ScratchOf(call, thread));
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
  ParallelFor(
      shape.num_sequences * shape.num_kv_heads, 1, MaxThreads(call),
      [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t b = i / shape.num_kv_heads;
          const int64_t g = i % shape.num_kv_heads;
          for (int64_t h = g * group; h < (g + 1) * group; ++h) {
            StridedProduct product = {.m = shape.seq_len,
                                      .n = shape.head_width,
                                      .k = shape.seq_len,
                                      .a = HeadScores(dscores, shape, b, h),
                                      .a_stride = shape.seq_len,
                                      .factor = Scale(shape)};
            if (dq_view.bound()) {
              const HeadRows k(call.slots[attention_scores::kK], shape, b, g);
              const HeadRows dq(dq_view, shape, b, h);
              product.b = k.data;
              product.b_stride = k.stride;
              product.c = dq.data;
              product.c_stride = dq.stride;
              MultiplyStrided(product, ScratchOf(call, thread));
            }
            if (dk_view.bound()) {
              const HeadRows q(call.slots[attention_scores::kQ], shape, b, h);
              const HeadRows dk(dk_view, shape, b, g);
              product.a_transposed = true;
              product.b = q.data;
              product.b_stride = q.stride;
              product.c = dk.data;
              product.c_stride = dk.stride;
              product.add = h > g * group;
              MultiplyStrided(product, ScratchOf(call, thread));
            }
          }
        }
      });
}

}  // namespace ebb::cpu
