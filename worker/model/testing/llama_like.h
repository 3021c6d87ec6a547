// The options of a Llama-like model, for tests that train both families.
#pragma once

#include "worker/model/job_spec.h"

namespace ebb {

// The same sizes with RMS norm, rotary positions, SwiGLU, fewer key/value heads
// and neither biases nor tied embeddings. Source: Touvron et al. 2023; Ainslie
// et al. 2023.
inline ModelSpec LlamaLike(ModelSpec model, int kv_heads) {
  model.norm = Norm::kRmsNorm;
  model.positions = Positions::kRope;
  model.rope_theta = 500000;
  model.activation = Activation::kSwiglu;
  model.kv_heads = kv_heads;
  model.bias = false;
  model.tied_embeddings = false;
  return model;
}

}  // namespace ebb
