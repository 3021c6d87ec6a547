// All programs of a job on one rank, and the memory that they need together.
// The planner and the trainer both start here, so what `ebb plan` prints and
// what a worker takes are the same numbers.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/graph.h"
#include "worker/model/job_spec.h"
#include "worker/program/plan.h"
#include "worker/program/program.h"

namespace ebb {

struct JobPrograms {
  Graph graph;  // of training
  Program training;
  std::optional<Program> evaluation;  // eval.every > 0
  int64_t step_bytes = 0;  // the larger of the two: they share the step arena
  int64_t host_bytes = 0;  // of the host arena, which training alone uses
  int64_t disk_bytes = 0;  // of the disk arena, likewise
};

// The graph of one training microbatch.
absl::StatusOr<Graph> BuildTrainingGraph(const JobSpec& spec);

// Lowers training and, if the spec evaluates, evaluation of
// `evaluation_sequences` sequences (at least 1; it does not change memory).
// Errors: as BuildTransformer and LowerTraining.
absl::StatusOr<JobPrograms> LowerJob(const JobSpec& spec, const Plan& plan,
                                     const Backend& backend,
                                     int64_t evaluation_sequences);

// A sampling program for contexts of up to `context` tokens, with its graph.
struct SamplePrograms {
  Graph graph;
  Program program;
};

// Errors: as BuildTransformer and LowerSampling.
absl::StatusOr<SamplePrograms> LowerSample(const JobSpec& spec, int64_t context,
                                           const Backend& backend);

// Memory of the rank by class at the peak of a training step. What the shared
// step arena has beyond the training program's need is fragmentation.
RankPlan PredictRank(const JobPrograms& programs, const Backend& backend);

}  // namespace ebb
