// The decoder-only transformer as a graph, norms before each block: GPT-2-like
// (layer norm, learned positions, GELU, biases), Llama-like (RMS norm, rotary
// positions, grouped-query attention, SwiGLU) and what lies between: the
// model's options are independent.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/model/graph.h"
#include "worker/model/job_spec.h"

namespace ebb {

// Builds the graph of one microbatch of micro_batch sequences of seq_len tokens
// (training and evaluation differ in both). loss_tokens: tokens over which the
// loss is the mean, i.e. of the whole global batch. Dropout is left out of an
// evaluation graph. Weights and activations have `dtype`, fp32 or bf16.
// Sources: Radford et al. 2019, section 2.3; Touvron et al. 2023, section 2.2;
// Ainslie et al. 2023 (grouped-query attention).
// Errors: INVALID_ARGUMENT, UNIMPLEMENTED name the spec's field.
absl::StatusOr<Graph> BuildTransformer(const ModelSpec& model,
                                       int64_t micro_batch, int64_t seq_len,
                                       int64_t loss_tokens, bool training,
                                       DType dtype = DType::kF32);

}  // namespace ebb
