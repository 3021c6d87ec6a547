// Makes tokens with a checkpoint's weights: a program that runs forward over
// the context, padded, and gives the logits of its last token. There is no
// store of keys and values: every token costs a pass over the whole context.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "worker/checkpoint/native.h"
#include "worker/model/job_spec.h"

namespace ebb {

// Single-threaded (kernels use their own team).
class Sampler {
 public:
  // Reads the weights of the checkpoint. `num_tokens`: the longest context that
  // will come; beyond model.seq_len the last seq_len tokens count.
  // Errors: those of reading weights; RESOURCE_EXHAUSTED if weights and
  // activations do not fit into memory; UNIMPLEMENTED for a device that is no
  // CPU and for missing kernels.
  static absl::StatusOr<std::unique_ptr<Sampler>> Create(
      const JobSpec& spec, std::unique_ptr<Device> device,
      const CheckpointReader& checkpoint, int64_t num_tokens);
  ~Sampler();

  // Logits of what follows the context (one token or more), one for each id of
  // the vocabulary; valid until the next call.
  // REQUIRES: every id is in the vocabulary.
  absl::StatusOr<std::span<const float>> Logits(
      std::span<const int32_t> context);

 private:
  struct State;
  explicit Sampler(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace ebb
