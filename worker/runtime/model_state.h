// The parameters and moments of a rank in its state arena: first values,
// checkpoints, hash.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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

  // Fills parameters with first values and moments with zeros.
  void Initialize(uint64_t seed);
  // Fills parameters from what `init_from` names; moments become zero.
  // Returns what is there and the model does not have.
  // Errors: those of ReadInitialWeights.
  absl::StatusOr<std::vector<std::string>> ReadWeights(
      absl::string_view directory, const ModelSpec& model);
  // Fills parameters and moments. Errors: those of CheckpointReader::Read.
  absl::Status ReadAll(const CheckpointReader& reader);
  // Parameters and moments in place, for WriteCheckpoint.
  std::vector<CheckpointTensor> Tensors() const;

  // 64-bit hash of names and bits of all parameters in order of their names.
  uint64_t Hash() const;

 private:
  // One parameter of one layer.
  struct Instance {
    std::string name;
    int layer = 0;
    const Value* value = nullptr;
    float* parameter = nullptr;
    float* first_moment = nullptr;
    float* second_moment = nullptr;
  };

  void ClearMoments();

  std::vector<Instance> instances_;  // by name
};

}  // namespace ebb
