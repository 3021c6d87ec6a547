// The spec that the tests of the spec's language start from.
#pragma once

namespace ebb {

// Valid, every section present, built features only. Absolute paths.
inline constexpr char kGoodYaml[] = R"(name: quickstart
priority: 0
model:
  layers: 4
  hidden: 128
  heads: 4
  kv_heads: 4
  ffn: 512
  vocab: 257
  seq_len: 128
  norm: layernorm
  norm_eps: 1e-5
  activation: gelu
  positions: learned
  rope_theta: 10000
  attention: fused
  bias: true
  tied_embeddings: true
  dropout: 0.0
  experts: 0
  top_k: 2
  capacity_factor: 1.25
  aux_loss: 0.01
data:
  train: /corpus.txt   # a comment
  validation: ""
  format: auto
  shuffle: true
batch: {global: 8, micro: 2}
steps: 200
seed: 1234
precision: fp32
optimizer: {name: adamw, lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8,
            weight_decay: 0.1, clip: 1.0}
lr_schedule: {warmup: 10, decay: cosine, min_lr: 1e-4}
parallel: {data: 1, tensor: 1, sequence: false, sequence_chunks: 1,
           pipeline: 1, schedule: 1f1b, virtual_stages: 1, expert: 1, zero: 0}
memory:
  policy: none
  group: 1
  recompute: []
  offload: none
  offload_optimizer: none
  offload_parameters: none
  offload_dir: ""
  encode: {values: [], format: none}
  budget: 2GiB
  host_budget: 8GiB
checkpoint: {every: 0, keep: 2, init_from: ""}
eval: {every: 0, batches: 8, micro: 0, seq_len: 0}
resources: {device: auto, device_model: "", threads: 0, timeout: 5m}
restart: {max: 3}
)";

// The same with what is required alone.
inline constexpr char kShortYaml[] = R"(model:
  layers: 4
  hidden: 128
  heads: 4
  vocab: 257
  seq_len: 128
data:
  train: /corpus.txt
batch:
  global: 8
  micro: 2
steps: 200
)";

inline constexpr char kShortJson[] = R"({
  "model": {"layers": 4, "hidden": 128, "heads": 4, "vocab": 257,
            "seq_len": 128},
  "data": {"train": "/corpus.txt"},
  "batch": {"global": 8, "micro": 2},
  "steps": 200
}
)";

}  // namespace ebb
