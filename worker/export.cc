// From a directory of checkpoints to one of them, its spec, its files.
#include "worker/export.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/huggingface.h"
#include "worker/job_checkpoint.h"

namespace ebb {
absl::StatusOr<ExportResult> ExportCheckpoint(
    const ExportRequest& request, const std::function<bool()>& cancelled) {
  if (!absl::StartsWith(request.directory, "/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("must be an absolute path: '", request.directory, "'"));
  }
  EBB_ASSIGN_OR_RETURN(const JobCheckpoint checkpoint,
                       OpenJobCheckpoint(request.checkpoints, request.step));
  const CheckpointReader& reader = checkpoint.reader;
  ExportSettings options;
  if (request.shard_bytes > 0) options.shard_bytes = request.shard_bytes;
  options.cancelled = cancelled;
  EBB_ASSIGN_OR_RETURN(ExportedFiles files,
                       ExportHuggingFace(reader, checkpoint.spec.model,
                                         request.directory, options));
  return ExportResult{reader.meta().step, reader.directory(), request.directory,
                      std::move(files.names), files.bytes};
}

std::string ExportJson(const ExportResult& result) {
  const nlohmann::ordered_json json = {{"step", result.step},
                                       {"checkpoint", result.checkpoint},
                                       {"directory", result.directory},
                                       {"files", result.files},
                                       {"bytes", result.bytes}};
  // Paths may be anything.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace ebb
