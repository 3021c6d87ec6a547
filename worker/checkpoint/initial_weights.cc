// One question, two formats.
#include "worker/checkpoint/initial_weights.h"

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "worker/checkpoint/huggingface.h"

namespace ebb {
namespace {

// Opens a native checkpoint; where there is none, says where one lies: below a
// directory of checkpoints, or of a job.
absl::StatusOr<CheckpointReader> OpenNative(absl::string_view directory) {
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(directory);
  if (!absl::IsNotFound(reader.status())) return reader;
  for (const char* const below : {"", "/checkpoints"}) {
    const absl::StatusOr<FoundCheckpoint> found =
        FindNewestComplete(absl::StrCat(directory, below));
    if (found.ok()) {
      return absl::NotFoundError(absl::StrCat(
          reader.status().message(), "; did you mean ", found->directory, "?"));
    }
  }
  return absl::NotFoundError(
      absl::StrCat(reader.status().message(), ", nor a config.json"));
}

}  // namespace

absl::Status CheckInitialWeights(absl::string_view directory,
                                 const ModelSpec& model,
                                 absl::Span<const WantedWeight> wanted) {
  if (IsHuggingFaceDirectory(directory)) {
    return CheckHuggingFaceWeights(directory, model, wanted).status();
  }
  EBB_ASSIGN_OR_RETURN(const CheckpointReader reader, OpenNative(directory));
  return MatchWeights(reader, wanted).ToStatus(directory);
}

absl::StatusOr<std::vector<std::string>> ReadInitialWeights(
    absl::string_view directory, const ModelSpec& model,
    absl::Span<const WantedWeight> wanted) {
  if (IsHuggingFaceDirectory(directory)) {
    return ReadHuggingFaceWeights(directory, model, wanted);
  }
  EBB_ASSIGN_OR_RETURN(const CheckpointReader reader, OpenNative(directory));
  const WeightsMatch match = MatchWeights(reader, wanted);
  EBB_RETURN_IF_ERROR(match.ToStatus(directory));
  for (const WantedWeight& weight : wanted) {
    EBB_RETURN_IF_ERROR(reader.Read(weight.name, CheckpointRole::kParameter,
                                    weight.type, weight.out));
  }
  return match.unused;
}

}  // namespace ebb
