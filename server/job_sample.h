// Sampling from a job's checkpoint through `ebb-worker --sample`
// (worker/sampling.h says what it takes and prints).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/job_service.pb.h"
#include "server/coordinator.h"
#include "server/job_tool.h"

namespace ebb {

// Runs the worker to its end and hands on what it makes.
// REQUIRES: the request is valid (Coordinator::SampleJob checks it).
// Errors: those of JobTools::Run; INTERNAL for output that is none.
absl::Status SampleThroughWorker(JobTools& tools,
                                 const std::string& checkpoints,
                                 const v1::SampleJobRequest& request,
                                 const SampleListener& listener);

}  // namespace ebb
