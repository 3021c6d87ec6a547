// Hugging Face directories: weights in, weights out.
//
//   config.json                    what the model is
//   model.safetensors              its tensors, or
//   model.safetensors.index.json   {"weight_map": {tensor: file}} and
//   model-00001-of-00002...        those files
// and, where Ebb wrote it,
//   optimizer.safetensors          moments, under the tensors' names with
//                                  ".first_moment" and ".second_moment" behind;
//                                  metadata "step"
// huggingface_names.h has the names, huggingface_config.h the configuration.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/checkpoint/native.h"
#include "worker/model/job_spec.h"

namespace ebb {

// Whether the directory has a config.json.
bool IsHuggingFaceDirectory(absl::string_view directory);

// What is in a directory that a model does not need, one line each.
using UnusedTensors = std::vector<std::string>;

// Looks at configuration, index and headers, as reading does, and at no tensor.
// Where there is an index it alone decides which file a tensor comes from. With
// tied embeddings the head's tensor need not be there.
// Errors: INVALID_ARGUMENT with everything that is wrong: fields that are not
// the model's, files and tensors that are missing, damaged or contradict each
// other, shapes and dtypes; UNIMPLEMENTED for another kind of model.
absl::StatusOr<UnusedTensors> CheckHuggingFaceWeights(
    absl::string_view directory, const ModelSpec& model,
    absl::Span<const WantedWeight> wanted);

// Checks, then reads all wanted weights, which are fp32: every F32, BF16 and
// F16 comes exactly. A head that is tied and there nevertheless must equal the
// embedding. Errors: as above, and UNAVAILABLE or DATA_LOSS while reading.
absl::StatusOr<UnusedTensors> ReadHuggingFaceWeights(
    absl::string_view directory, const ModelSpec& model,
    absl::Span<const WantedWeight> wanted);

// 5 GB, as the library that made the format cuts its files.
constexpr int64_t kDefaultShardBytes = 5'000'000'000;

struct ExportSettings {
  // No file of weights but one of a single tensor is larger.
  int64_t shard_bytes = kDefaultShardBytes;
  // Asked before every tensor: true ends the export, with nothing left of it.
  std::function<bool()> cancelled = [] { return false; };
};

struct ExportedFiles {
  std::vector<std::string> names;
  int64_t bytes = 0;
};

// Writes a native checkpoint's weights and moments as `directory`, which must
// not exist, or be empty: complete under its name, or nothing. Holds the
// largest tensor in memory. Errors: FAILED_PRECONDITION if the directory is not
// empty or none is above it, PERMISSION_DENIED, UNIMPLEMENTED for a model that
// no family has, CANCELLED, those of CheckpointReader::Read and of OutputFile.
absl::StatusOr<ExportedFiles> ExportHuggingFace(
    const CheckpointReader& checkpoint, const ModelSpec& model,
    const std::string& directory, const ExportSettings& options = {},
    FileSystem& files = PosixFileSystem());

}  // namespace ebb
