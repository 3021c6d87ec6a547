// Where one head's rows lie within the strided views that attention ops are
// given.
#pragma once

#include "kernels/op_call.h"
#include "kernels/ops/attention_shape.h"

namespace ebb::cpu {

// One head's [T, W] matrix within a view [N, heads * W].
struct HeadRows {
  float* data = nullptr;  // null: not bound
  int64_t stride = 0;     // elements between rows

  HeadRows(const Tensor& view, const AttentionShape& shape, int64_t sequence,
           int64_t head)
      : stride(view.row_stride) {
    if (!view.bound()) return;
    data = view.as<float>() + sequence * shape.seq_len * view.row_stride +
           head * shape.head_width;
  }
};

// One head's [T, T] matrix within [B, H, T, T].
inline float* HeadScores(const Tensor& scores, const AttentionShape& shape,
                         int64_t sequence, int64_t head) {
  return scores.as<float>() +
         (sequence * shape.num_heads + head) * shape.seq_len * shape.seq_len;
}

}  // namespace ebb::cpu
