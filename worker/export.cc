// From a directory of checkpoints to one of them, its spec, its files.
#include "worker/export.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "proto/convert.h"
#include "proto/spec_reader.h"
#include "worker/checkpoint/huggingface.h"
#include "worker/checkpoint/native.h"

namespace ebb {
namespace {

absl::StatusOr<CheckpointReader> OpenCheckpoint(const ExportRequest& request) {
  absl::StatusOr<FoundCheckpoint> newest =
      FindNewestComplete(request.checkpoints);
  if (!newest.ok()) {
    if (!absl::IsNotFound(newest.status())) return newest.status();
    return absl::FailedPreconditionError(
        absl::StrCat("the job has no complete checkpoint (checkpoint.every): ",
                     newest.status().message()));
  }
  if (request.step == 0) return std::move(newest->reader);
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(
      absl::StrCat(request.checkpoints, "/", CheckpointName(request.step)));
  if (absl::IsNotFound(reader.status())) {
    return absl::NotFoundError(absl::StrCat("there is no checkpoint of step ",
                                            request.step, "; the newest is of ",
                                            newest->step));
  }
  return reader;
}

}  // namespace

absl::StatusOr<ExportResult> ExportCheckpoint(
    const ExportRequest& request, const std::function<bool()>& cancelled) {
  if (!absl::StartsWith(request.directory, "/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("must be an absolute path: '", request.directory, "'"));
  }
  EBB_ASSIGN_OR_RETURN(const CheckpointReader reader, OpenCheckpoint(request));
  const std::string source = absl::StrCat("spec in ", reader.directory());
  EBB_ASSIGN_OR_RETURN(const v1::JobSpec message,
                       ReadSpec(reader.meta().spec, source, {}));
  EBB_ASSIGN_OR_RETURN(const JobSpec spec, JobSpecFromMessage(message));
  ExportSettings options;
  if (request.shard_bytes > 0) options.shard_bytes = request.shard_bytes;
  options.cancelled = cancelled;
  EBB_ASSIGN_OR_RETURN(
      ExportedFiles files,
      ExportHuggingFace(reader, spec.model, request.directory, options));
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
