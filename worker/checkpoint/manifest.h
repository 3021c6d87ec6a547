// manifest.json: what is where in a native checkpoint, as structs and as text.
//
// One JSON object, one member or tensor a line:
//   format "ebb-checkpoint", version 1, step, attempt, seed, sequences,
//   graph_fingerprint (16 hexadecimal digits), spec (text)
//   files   [{name: "rank-R.bin", bytes}]
//   tensors [{name, role: parameter | first_moment | second_moment, dtype,
//             shape, file, offset, bytes, crc32c}]
//   crc32c  8 hexadecimal digits: of all bytes before this member's name
// A tensor starts at a multiple of 64 bytes and is padded with zeros to one;
// its crc32c covers the padding. The tensors of a file lie one behind the other
// and fill it, so that every byte of a checkpoint is under a checksum.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/tensor.h"

namespace ebb {

enum class CheckpointRole : uint8_t {
  kParameter,
  kFirstMoment,
  kSecondMoment,
};

// "parameter", "first_moment", "second_moment".
const char* CheckpointRoleName(CheckpointRole role);

struct CheckpointMeta {
  int64_t step = 0;  // last finished update
  int attempt = 0;
  uint64_t seed = 0;
  int64_t sequences = 0;  // of the training order, consumed
  uint64_t graph_fingerprint = 0;
  std::string spec;  // effective, as text; UTF-8
};

// Where one tensor lies.
struct CheckpointEntry {
  std::string name;
  CheckpointRole role = CheckpointRole::kParameter;
  TensorType type;
  std::string file;
  int64_t offset = 0;
  uint32_t crc = 0;
};

struct ManifestFile {
  std::string name;
  int64_t bytes = 0;
};

struct Manifest {
  CheckpointMeta meta;
  std::vector<ManifestFile> files;
  std::vector<CheckpointEntry> tensors;  // parsed: sorted by role, then name
};

// "fp32 [64, 256]".
std::string StoredTypeText(const TensorType& type);

// Errors: INVALID_ARGUMENT for text that is not UTF-8.
absl::StatusOr<std::string> PrintManifest(const Manifest& manifest);

// Believes nothing: checks the checksum, every member, and that names are
// unique, file names plain, shapes, sizes and offsets in agreement.
// Errors: DATA_LOSS, with member or tensor; FAILED_PRECONDITION for another
// format version.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

}  // namespace ebb
