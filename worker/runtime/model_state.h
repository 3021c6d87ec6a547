// The parameters and moments of a rank in its state arena: first values,
// checkpoints, hash.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/bf16.h"
#include "kernels/device.h"
#include "worker/checkpoint/native.h"
#include "worker/model/graph.h"
#include "worker/model/job_spec.h"
#include "worker/program/program.h"
#include "worker/runtime/arena_memory.h"

namespace ebb {

// A view: device, graph, program and arena must outlive it. The state arena is
// host memory (CPU devices); the trainer refuses others.
class ModelState {
 public:
  ModelState(const Graph& graph, const Program& program,
             const ArenaView& arenas);

  // Fills parameters with first values and moments with zeros. Here as below
  // the values are those of the fp32 masters; weights that are stored narrower
  // follow, rounded.
  void Initialize(uint64_t seed);
  // Fills parameters from what `init_from` names and leaves moments as they
  // are: zero in a new arena.
  // Returns what is there and the model does not have.
  // Errors: those of ReadInitialWeights.
  absl::StatusOr<std::vector<std::string>> ReadWeights(
      absl::string_view directory, const ModelSpec& model);
  // Fills parameters from a checkpoint alike. Errors: those of
  // ebb::ReadWeights.
  absl::Status ReadWeights(const CheckpointReader& reader);
  // Fills parameters and moments. Errors: those of CheckpointReader::Read.
  absl::Status ReadAll(const CheckpointReader& reader);
  // Masters and moments in place, for WriteCheckpoint: fp32 in every precision,
  // so that a job continues exactly and others may start from its weights.
  std::vector<CheckpointTensor> Tensors() const;

  // 64-bit hash of names and bits of all masters in order of their names.
  uint64_t Hash() const;

 private:
  // One parameter of one layer.
  struct Instance {
    std::string name;
    int layer = 0;
    const Value* value = nullptr;
    TensorType type;         // of master and moments: fp32
    Bf16* weight = nullptr;  // null: the master is the weight
    float* master = nullptr;
    float* first_moment = nullptr;
    float* second_moment = nullptr;
  };

  std::vector<WantedWeight> Wanted() const;  // the masters

  void ClearMoments();
  // Rounds masters to the weights that the model computes with.
  void RoundWeights();

  std::vector<Instance> instances_;  // by name
};

}  // namespace ebb
