// A checkpoint of a job as sampling and exporting open it: with its spec.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/checkpoint/native.h"
#include "worker/model/job_spec.h"

namespace ebb {

struct JobCheckpoint {
  CheckpointReader reader;
  JobSpec spec;
};

// Opens the checkpoint of `step` below the directory `checkpoints`, the newest
// complete one if `step` is 0.
// Errors: NOT_FOUND if there is none of that step, with the step of the newest;
// FAILED_PRECONDITION if there is none at all; those of CheckpointReader::Open
// and of reading the spec.
absl::StatusOr<JobCheckpoint> OpenJobCheckpoint(const std::string& checkpoints,
                                                int64_t step);

}  // namespace ebb
