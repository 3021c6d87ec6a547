// Exports through `ebb-worker --export`, a job tool.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/job_service.pb.h"
#include "server/job_tool.h"

namespace ebb {

// Writes a checkpoint below `checkpoints` as request.directory; returns when it
// is done. Errors: those of JobTools::Run and of the worker's export.
absl::StatusOr<v1::ExportJobResponse> ExportThroughWorker(
    JobTools& tools, const std::string& checkpoints,
    const v1::ExportJobRequest& request,
    const std::function<bool()>& cancelled);

}  // namespace ebb
