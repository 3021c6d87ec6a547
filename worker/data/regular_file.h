// A regular file that is read at offsets, wherever in the world it came from:
// nothing that waits (a FIFO) or acts (a device) is ever opened.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ebb {

// Owns its descriptor. Const after Open; reading is safe from any thread.
class RegularFile {
 public:
  // Errors: INVALID_ARGUMENT, without the path, if it cannot be opened or is
  // something else (which is named).
  static absl::StatusOr<RegularFile> Open(const std::string& path);

  RegularFile(RegularFile&& other) noexcept { *this = std::move(other); }
  RegularFile& operator=(RegularFile&& other) noexcept;
  ~RegularFile();

  // At Open.
  int64_t bytes() const { return bytes_; }
  // Identity of the file.
  uint64_t device() const { return device_; }
  uint64_t inode() const { return inode_; }
  int descriptor() const { return descriptor_; }

  // Reads `bytes` bytes at an offset. A mapped file that shrinks ends the
  // process at the next access, a read merely fails: the coordinator opens
  // files too. Errors: INVALID_ARGUMENT.
  absl::Status ReadAt(int64_t offset, void* out, int64_t bytes) const;

 private:
  RegularFile() = default;

  int descriptor_ = -1;
  int64_t bytes_ = 0;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
};

}  // namespace ebb
