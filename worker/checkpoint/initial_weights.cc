// One question, two formats.
#include "worker/checkpoint/initial_weights.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "worker/checkpoint/huggingface.h"

namespace ebb {
namespace {

absl::StatusOr<CheckpointReader> OpenNative(absl::string_view directory) {
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(directory);
  if (!absl::IsNotFound(reader.status())) return reader;
  return absl::NotFoundError(
      absl::StrCat(reader.status().message(), ", nor a config.json"));
}

}  // namespace

absl::StatusOr<std::string> FindInitialWeights(absl::string_view directory) {
  if (IsHuggingFaceDirectory(directory)) return std::string(directory);
  const absl::Status opened = OpenNative(directory).status();
  if (opened.ok()) return std::string(directory);
  if (!absl::IsNotFound(opened)) return opened;
  while (absl::EndsWith(directory, "/")) directory.remove_suffix(1);
  std::string below = absl::StrCat(directory, "/checkpoints");
  std::error_code ignored;
  if (!std::filesystem::is_directory(below, ignored)) {
    below = std::string(directory);
  }
  absl::StatusOr<FoundCheckpoint> found = FindNewestComplete(below);
  if (found.ok()) return std::move(found->directory);
  if (!std::filesystem::is_directory(below, ignored)) return opened;
  return absl::NotFoundError(
      absl::StrCat(opened.message(), "; ", found.status().message()));
}

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
  return ReadWeights(reader, wanted);
}

}  // namespace ebb
