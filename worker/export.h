// `ebb-worker --export`: a job's checkpoint as Hugging Face files, for the
// coordinator, which starts it and reads what it prints.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb {

struct ExportRequest {
  std::string checkpoints;  // directory of step-N directories
  int64_t step = 0;         // 0: the newest complete one
  std::string directory;    // absolute; to be written
  int64_t shard_bytes = 0;  // 0: the default
};

struct ExportResult {
  int64_t step = 0;
  std::string checkpoint;
  std::string directory;
  std::vector<std::string> files;
  int64_t bytes = 0;
};

// Exports the checkpoint with the model of the spec that lies in it. One that
// is pruned meanwhile is exported all the same.
// Errors: FAILED_PRECONDITION if there is no complete checkpoint, NOT_FOUND for
// a step that there is none of, INVALID_ARGUMENT for a relative directory, and
// those of ExportHuggingFace.
absl::StatusOr<ExportResult> ExportCheckpoint(
    const ExportRequest& request, const std::function<bool()>& cancelled);

// One line: {"step", "checkpoint", "directory", "files", "bytes"}.
std::string ExportJson(const ExportResult& result);

}  // namespace ebb
