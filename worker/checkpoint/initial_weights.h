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

// Looks at a native checkpoint, or at a Hugging Face directory (one with a
// config.json), as reading does, and at no tensor. `out` of the wanted is not
// touched.
// Errors: those of CheckHuggingFaceWeights, CheckpointReader::Open and
// MatchWeights; NOT_FOUND for what is neither says which checkpoint lies below
// it.
absl::Status CheckInitialWeights(absl::string_view directory,
                                 const ModelSpec& model,
                                 absl::Span<const WantedWeight> wanted);

// Checks, then reads: parameters alone, no moments, no position. Returns what
// is there and the model does not have. Errors: as above, and those of reading.
absl::StatusOr<std::vector<std::string>> ReadInitialWeights(
    absl::string_view directory, const ModelSpec& model,
    absl::Span<const WantedWeight> wanted);

}  // namespace ebb
