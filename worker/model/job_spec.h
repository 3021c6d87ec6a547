// The part of a job spec that planning and training read, as a plain struct:
// effective, every default filled in and every rule checked. proto/convert
// makes it from the message; nothing below `proto` knows protobuf.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace ebb {

enum class Norm : uint8_t { kLayerNorm, kRmsNorm };
enum class Activation : uint8_t { kGelu, kRelu, kSwiglu };
enum class Positions : uint8_t { kLearned, kRope };
enum class AttentionKind : uint8_t { kFused, kUnfused };
enum class DataFormat : uint8_t { kAuto, kText, kLlmc, kMegatron };
enum class LrDecay : uint8_t { kConstant, kLinear, kCosine };
enum class Policy : uint8_t {
  kNone,
  kSelective,
  kCheap,
  kFull,
  kSqrt,
  kCustom,
  kAuto
};

enum class Offload : uint8_t { kNone, kHost, kDisk };

// "none", "selective", ... as in specs, JSON and metrics.
const char* PolicyName(Policy policy);

struct ModelSpec {
  int layers = 0;
  int64_t hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t seq_len = 0;
  Norm norm = Norm::kLayerNorm;
  double norm_eps = 1e-5;
  Activation activation = Activation::kGelu;
  Positions positions = Positions::kLearned;
  double rope_theta = 10000;
  AttentionKind attention = AttentionKind::kFused;
  bool bias = true;
  bool tied_embeddings = true;
  double dropout = 0;
};

struct DataSpec {
  std::string train;       // absolute file or glob
  std::string validation;  // empty: none
  DataFormat format = DataFormat::kAuto;
  bool shuffle = true;
};

struct OptimizerSpec {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1;
};

struct LrScheduleSpec {
  int64_t warmup = 0;
  LrDecay decay = LrDecay::kCosine;
  double min_lr = 0;
};

// Lossy encoding of saved values, only on request.
struct EncodeSpec {
  std::vector<std::string> values;  // names of ops or, with *, of values
  DType format = DType::kNone;      // or kBf16, kF8E4M3
};

struct MemorySpec {
  Policy policy = Policy::kNone;
  int group = 1;
  std::vector<std::string> recompute;
  Offload offload = Offload::kNone;  // of saved values that the policy keeps
  Offload offload_optimizer = Offload::kNone;
  Offload offload_parameters = Offload::kNone;
  std::string offload_dir;  // empty: in the attempt's directory
  EncodeSpec encode;
  int64_t budget_bytes = 0;
  int64_t host_budget_bytes = 0;
};

struct CheckpointSpec {
  int64_t every = 0;
  int keep = 2;
  std::string init_from;
};

struct EvalSpec {
  int64_t every = 0;
  int batches = 8;
  int micro = 0;        // effective: never 0
  int64_t seq_len = 0;  // effective: never 0
};

struct JobSpec {
  std::string name;
  ModelSpec model;
  DataSpec data;
  int global_batch = 0;  // sequences
  int micro_batch = 0;   // sequences
  int64_t steps = 0;
  uint64_t seed = 1234;
  DType precision = DType::kBf16;
  OptimizerSpec optimizer;
  LrScheduleSpec lr_schedule;
  MemorySpec memory;
  CheckpointSpec checkpoint;
  EvalSpec eval;
  int threads = 1;
  double start_timeout_seconds = 300;

  int num_microbatches() const { return global_batch / micro_batch; }
};

}  // namespace ebb
