// Graph and plan to program: order, recompute, gradient accumulation, update,
// and the place of every byte. A pure function; the planner calls it to price a
// candidate and the worker to get what it runs, so that prediction and arena
// are the same number by construction.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/graph.h"
#include "worker/model/job_spec.h"
#include "worker/program/plan.h"
#include "worker/program/program.h"

namespace ebb {

// The training program: zero gradients, microbatches, norm, clip, update.
// Errors: FAILED_PRECONDITION if the plan is for another graph.
absl::StatusOr<Program> LowerTraining(const Graph& graph, const Plan& plan,
                                      const OptimizerSpec& optimizer,
                                      int num_microbatches,
                                      const Backend& backend);

// The evaluation program of the same job: forward alone. `graph` is the
// evaluation graph; `training` gives the state arena's layout.
absl::StatusOr<Program> LowerEvaluation(const Graph& graph,
                                        const Program& training,
                                        int num_microbatches,
                                        const Backend& backend);

// A program that gives the logits of one row (Program::logits), which the
// executor is told. `graph` is an evaluation graph of one sequence. The state
// arena's layout is that of training; only the parameters are read.
absl::StatusOr<Program> LowerSampling(const Graph& graph,
                                      const Backend& backend);

}  // namespace ebb
