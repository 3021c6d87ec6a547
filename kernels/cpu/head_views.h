// Where one head's rows lie within the strided views that attention ops are
// given, and one thread's scratch within a workspace.
#pragma once

#include "kernels/op_call.h"
#include "kernels/ops/attention_shape.h"

namespace ebb::cpu {

// One head's [T, W] matrix within a view [N, heads * W].
struct HeadRows {
  void* data = nullptr;  // null: not bound
  int64_t stride = 0;    // elements between rows

  HeadRows(const Tensor& view, const AttentionShape& shape, int64_t sequence,
           int64_t head)
      : stride(view.row_stride) {
    if (!view.bound()) return;
    data = view.as<char>() + (sequence * shape.seq_len * view.row_stride +
                              head * shape.head_width) *
                                 DTypeBytes(view.type.dtype);
  }

  // Row t, of elements T.
  template <typename T>
  T* Row(int64_t t) const {
    return static_cast<T*>(data) + t * stride;
  }
};

// One head's [T, T] matrix within [B, H, T, T].
inline void* HeadScores(const Tensor& scores, const AttentionShape& shape,
                        int64_t sequence, int64_t head) {
  return scores.as<char>() + (sequence * shape.num_heads + head) *
                                 shape.seq_len * shape.seq_len *
                                 DTypeBytes(scores.type.dtype);
}

// A call's workspace, `bytes` a thread.
class ThreadScratch {
 public:
  ThreadScratch(const OpCall& call, int64_t bytes)
      : begin_(static_cast<char*>(call.workspace)),
        bytes_(bytes),
        max_threads_(static_cast<int>(call.workspace_bytes / bytes)) {}

  int max_threads() const { return max_threads_; }
  void* Of(int thread) const { return begin_ + thread * bytes_; }

 private:
  char* const begin_;
  const int64_t bytes_;
  const int max_threads_;
};

}  // namespace ebb::cpu
