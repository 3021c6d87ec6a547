// What a kernel is given: attributes, views, scratch and the scalars of the
// step. Plain data, no Abseil: device code includes this header.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace ebb {

// Every attribute that some op has; an op's header says which it reads. One
// flat struct, so that attributes compare, hash and print in one place.
struct OpAttrs {
  int32_t num_heads = 0;     // query heads (attention)
  int32_t num_kv_heads = 0;  // key/value heads; divides num_heads
  int32_t seq_len = 0;       // tokens per sequence: rows n of a [N, ...] value
                             // belong to sequence n / seq_len
  double rope_theta = 0;     // rope: base of the angles
  float epsilon = 0;         // norms, AdamW
  float dropout = 0;         // probability of dropping an element, in [0, 1)
  float loss_scale = 0;      // cross_entropy: weight of one token in the mean
  float beta1 = 0;           // AdamW
  float beta2 = 0;           // AdamW
  float weight_decay = 0;    // AdamW; 0 for norms, biases and 1-D values
  float clip = 0;            // clip_scale: largest gradient norm; 0: off
  DType result = DType::kNone;  // encode, decode: elements that are written
  bool operator==(const OpAttrs&) const = default;
};

// Scalars that differ from step to step; the same for all kernels of a
// microbatch.
struct StepScalars {
  uint64_t seed = 0;
  int64_t step = 0;  // 1 for the first optimizer update
  float learning_rate = 0;
  int64_t first_sequence = 0;  // index within the global batch of the
                               // microbatch's first sequence
};

struct RowStage;

// One call of a kernel. `slots` and `grads` are indexed by the op's slot enum.
// Forward: reads and writes `slots`. Backward: reads the slots that the op
// declares for the bound gradients and the gradients of its outputs
// (grads[kY]); writes exactly those input and param gradients that are bound.
// Gradients of params accumulate (+=), gradients of inputs overwrite.
// All that is not declared as read is bound to null.
struct OpCall {
  const OpAttrs* attrs = nullptr;
  const Tensor* slots = nullptr;
  const Tensor* grads = nullptr;  // null in a forward call
  void* workspace = nullptr;      // kAlignment-aligned scratch
  int64_t workspace_bytes = 0;    // what the op's workspace_bytes() said
  uint64_t value_key = 0;         // key of random draws, from the name of the
                                  // op's first output (ValueKey)
  int64_t row_offset = 0;         // first row of the microbatch that this call
                                  // sees, counted as in row_loop.h; above 0 in
                                  // a chunked head and in row loops
  const StepScalars* scalars = nullptr;
  // Ops with `takes_tail`: an op that treats every element alone, which the
  // kernel runs on each block of its result while that is in the cache
  // (kernels/row_loop.h). Null: none.
  const RowStage* tail = nullptr;
};

// A stream of ordered work on a device. On CPU calls run in order at once.
using Stream = void*;

using Kernel = void (*)(const OpCall&, Stream);

}  // namespace ebb
