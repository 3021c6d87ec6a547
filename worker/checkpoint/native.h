// Native checkpoints: a job's state on disk, written so that a crash at any
// moment leaves every complete checkpoint complete.
//
// PARENT/step-N/
//   manifest.json   what is where, with checksums (manifest.h)
//   rank-R.bin      raw little-endian tensors of rank R
//
// Writing: PARENT/.step-N.partial-K/ (K a number) is filled, its files and then
// itself synced, renamed to step-N, and PARENT synced. A directory with its
// final name is therefore complete; one without a valid manifest is not a
// checkpoint. A step-N that exists is swapped in one operation where the file
// system can do that; elsewhere it waits as .step-N.replaced-K, where
// FindNewestComplete finds it, until the new one has its name. Partial
// directories are never read; PruneCheckpoints removes them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"

namespace ebb {

// One tensor to write. Name and role together are unique.
struct CheckpointTensor {
  std::string name;  // the value's instance name: "L3.mlp_fc.weight"
  CheckpointRole role = CheckpointRole::kParameter;
  TensorType type;
  const void* data = nullptr;  // host memory, dense
  // Brings the bytes to `data`, where others may have been before; empty: they
  // are there.
  std::function<absl::Status()> fetch = {};
};

// "step-N".
std::string CheckpointName(int64_t step);

// Writes PARENT/step-N (PARENT is made if it is missing) and returns the bytes
// written. Synchronous: when it returns OK the checkpoint survives a crash of
// the machine. On failure nothing of it is left and older ones are as they
// were; if only the last sync of PARENT failed, step-N stays, complete.
// Errors: RESOURCE_EXHAUSTED if the disk or quota is full, UNAVAILABLE for
// other I/O errors, both with operation and path; INVALID_ARGUMENT for two
// tensors of one name and role, or text that is not UTF-8; those of `fetch`.
absl::StatusOr<int64_t> WriteCheckpoint(
    absl::string_view parent, const CheckpointMeta& meta,
    absl::Span<const CheckpointTensor> tensors,
    FileSystem& files = PosixFileSystem());

class InputFile;

// A complete checkpoint, opened for reading. Const after Open; reading is safe
// from any thread.
class CheckpointReader {
 public:
  using Entry = CheckpointEntry;

  // Reads and checks the manifest, and that all files are there with their
  // sizes; reads no tensor. The files stay open: a checkpoint that is pruned
  // meanwhile can still be read.
  // Errors: NOT_FOUND without directory or manifest, DATA_LOSS for a damaged
  // manifest or a missing or cut file, FAILED_PRECONDITION for another format
  // version, UNAVAILABLE for I/O errors.
  static absl::StatusOr<CheckpointReader> Open(absl::string_view directory);

  const std::string& directory() const { return directory_; }
  const CheckpointMeta& meta() const { return meta_; }
  // Sorted by role, then name.
  const std::vector<Entry>& entries() const { return entries_; }
  // Null if there is none.
  const Entry* Find(absl::string_view name, CheckpointRole role) const;

  // Reads one tensor into host memory of type.bytes() bytes.
  // Errors: NOT_FOUND for an unknown name, FAILED_PRECONDITION for another
  // type, DATA_LOSS for a wrong checksum or a short file (`out` then holds
  // garbage), UNAVAILABLE for I/O errors; all name file and tensor.
  absl::Status Read(absl::string_view name, CheckpointRole role,
                    const TensorType& type, void* out) const;

 private:
  std::string directory_;
  CheckpointMeta meta_;
  std::vector<Entry> entries_;
  std::map<std::string, std::shared_ptr<const InputFile>> files_;  // by name
};

// A tensor that a model wants to read.
struct WantedWeight {
  std::string name;
  TensorType type;
  void* out = nullptr;  // host memory; not touched by MatchWeights
};

// Parameters of a checkpoint against those of a model.
struct WeightsMatch {
  std::vector<std::string> missing;     // "L3.mlp_fc.weight fp32 [64, 256]"
  std::vector<std::string> mismatched;  // "... : want fp32 [64], have fp32 [8]"
  std::vector<std::string> unused;      // in the checkpoint alone
  // OK, or INVALID_ARGUMENT that lists everything missing and mismatched.
  absl::Status ToStatus(absl::string_view directory) const;
};

WeightsMatch MatchWeights(const CheckpointReader& reader,
                          absl::Span<const WantedWeight> wanted);

// Checks, then reads. Returns what is there and not wanted. Errors: those of
// MatchWeights and CheckpointReader::Read.
absl::StatusOr<std::vector<std::string>> ReadWeights(
    const CheckpointReader& reader, absl::Span<const WantedWeight> wanted);

struct FoundCheckpoint {
  // Open: it can be read even if a job that trains prunes it now.
  CheckpointReader reader;
  std::string directory;
  int64_t step = 0;
  // Newer ones that were passed over, with the reason.
  std::vector<std::string> skipped;
};

// Finds the newest checkpoint below `parent` that CheckpointReader::Open
// accepts, of a step below `before_step` (to fall back by one: the step of the
// one that failed to read). Where a job that trains prunes all that were listed
// before they are opened, the newer ones are listed.
// Errors: NOT_FOUND, listing those passed over; UNAVAILABLE if `parent` cannot
// be read.
absl::StatusOr<FoundCheckpoint> FindNewestComplete(
    absl::string_view parent,
    int64_t before_step = std::numeric_limits<int64_t>::max());

// Removes partial directories and every step-N older than the `keep` (at least
// 1) newest complete checkpoints. Returns the names removed.
// Errors: UNAVAILABLE, with path; what could be removed is removed.
absl::StatusOr<std::vector<std::string>> PruneCheckpoints(
    absl::string_view parent, int keep, FileSystem& files = PosixFileSystem());

}  // namespace ebb
