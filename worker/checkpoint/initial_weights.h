// The weights that a job starts from: what `checkpoint.init_from` may name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/checkpoint/native.h"
#include "worker/model/job_spec.h"

namespace ebb {

// The directory of weights that `directory` stands for: itself if it holds a
// native checkpoint or Hugging Face files, else the newest complete checkpoint
// in it or in its `checkpoints` (a job's directory).
// Errors: NOT_FOUND for what is neither, with the checkpoints that are not
// complete; those of CheckpointReader::Open.
absl::StatusOr<std::string> FindInitialWeights(absl::string_view directory);

// Looks at a native checkpoint, or at a Hugging Face directory (one with a
// config.json), as reading does, and at no tensor. `out` of the wanted is not
// touched.
// Errors: those of CheckHuggingFaceWeights, CheckpointReader::Open and
// MatchWeights.
absl::Status CheckInitialWeights(absl::string_view directory,
                                 const ModelSpec& model,
                                 absl::Span<const WantedWeight> wanted);

// Checks, then reads: parameters alone, no moments, no position. Returns what
// is there and the model does not have. Errors: as above, and those of reading.
absl::StatusOr<std::vector<std::string>> ReadInitialWeights(
    absl::string_view directory, const ModelSpec& model,
    absl::Span<const WantedWeight> wanted);

}  // namespace ebb
