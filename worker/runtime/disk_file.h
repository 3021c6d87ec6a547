// Values of a rank that wait on disk: one file.
//
// Reads and writes go around the page cache (O_DIRECT) where the file system
// can, through one aligned buffer that is taken once. All blocks are taken when
// the file is made or grows, so a full disk shows before a step. The file has
// no name: it outlives its directory, and its blocks are free again when the
// process ends, however it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/program/program.h"

namespace ebb {

// Used by one thread at a time.
class DiskFile {
 public:
  // Makes a file of `bytes`, at least 1, in `directory`.
  // Errors, all of which name the path: RESOURCE_EXHAUSTED if the disk is full,
  // FAILED_PRECONDITION if it may not or cannot be written.
  static absl::StatusOr<std::unique_ptr<DiskFile>> Create(
      const std::string& directory, int64_t bytes);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  // REQUIRES: `offset` is a multiple of kDiskBlockBytes; of what follows
  // `bytes` up to the next multiple, anything may be written.
  // Errors: as Create; FAILED_PRECONDITION for an input or output error, too.
  absl::Status Write(int64_t offset, const std::byte* data, int64_t bytes);
  // Errors: FAILED_PRECONDITION with the path.
  absl::Status Read(int64_t offset, std::byte* data, int64_t bytes);

  // Takes blocks for `bytes`, at least bytes(); what the file holds stays.
  // Errors: as Create; the file is then as before.
  absl::Status Grow(int64_t bytes);
  // Gives back all but the first `bytes`, 1 to bytes().
  void Shrink(int64_t bytes);

  const std::string& directory() const { return directory_; }
  int64_t bytes() const { return bytes_; }
  bool is_direct() const { return is_direct_; }

 private:
  struct FreeBuffer {
    void operator()(std::byte* buffer) const;
  };

  DiskFile(std::string directory, int descriptor, bool is_direct);
  // Without O_DIRECT from here on.
  bool GiveUpDirect();

  const std::string directory_;
  const int descriptor_;
  bool is_direct_;
  int64_t bytes_ = 0;
  std::unique_ptr<std::byte, FreeBuffer> buffer_;
};

}  // namespace ebb
