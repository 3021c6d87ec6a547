// The parameters and moments of a rank where its program has them: first
// values, checkpoints, hash.
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

// A view: device, graph, program and arenas must outlive it. The arenas are
// host memory (CPU devices); the trainer refuses others. What lies on disk is
// brought to the step arena, where its gradient has a place: between steps
// alone. Only Hash needs no step arena. Errors, where there are: those of
// DiskFile.
class ModelState {
 public:
  ModelState(const Graph& graph, const Program& program,
             const ArenaView& arenas);

  // Fills parameters with first values and moments with zeros. Here as below
  // the values are those of the fp32 masters; weights that are stored narrower
  // follow, rounded.
  absl::Status Initialize(uint64_t seed);
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
  // Those on disk come one after the other.
  std::vector<CheckpointTensor> Tensors() const;

  // 64-bit hash of names and bits of all masters in order of their names.
  absl::StatusOr<uint64_t> Hash() const;

 private:
  // A tensor of fp32.
  struct Place {
    float* data = nullptr;     // where it is, or is brought to
    int64_t disk_offset = -1;  // -1: it is in memory
  };

  // One parameter of one layer.
  struct Instance {
    std::string name;
    int layer = 0;
    const Value* value = nullptr;
    TensorType type;         // of master and moments: fp32
    Bf16* weight = nullptr;  // null: the master is the weight
    Place master, first_moment, second_moment;
  };

  std::vector<WantedWeight> Wanted() const;  // the masters

  // From and to disk; nothing for what is in memory.
  absl::Status Fetch(const Instance& instance, const Place& place) const;
  absl::Status Store(const Instance& instance, const Place& place) const;

  absl::Status ClearMoments();
  // Behind the masters' way into memory: rounds them to the weights that the
  // model computes with, and stores them.
  absl::Status TakeMasters();
  absl::Status TakeMaster(const Instance& instance);

  DiskFile* disk_ = nullptr;
  std::vector<Instance> instances_;  // by name
};

}  // namespace ebb
