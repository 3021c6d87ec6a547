// What writers and readers of checkpoints build from file operations: files
// that are written once and synced, files read at offsets, directories made and
// removed. Errors are RESOURCE_EXHAUSTED for a full disk or quota and
// UNAVAILABLE for other I/O errors, with operation and path.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/checkpoint/file_system.h"

namespace ebb {

// "could not OPERATION PATH: reason" of an errno.
absl::Status IoError(absl::string_view operation, absl::string_view path,
                     int error);

// "DIRECTORY/NAME".
std::string PathWithin(absl::string_view directory, absl::string_view name);

// A file being written; closed with the object.
class OutputFile {
 public:
  // `files` outlives it.
  OutputFile(FileSystem& files, std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // The file must not exist. Called once, before anything else.
  absl::Status Create();
  absl::Status Write(const void* data, int64_t bytes);
  absl::Status SyncAndClose();

 private:
  FileSystem& files_;
  const std::string path_;
  int descriptor_ = -1;
};

// A regular file being read. Const after Open; reading is safe from any thread.
class InputFile {
 public:
  // Errors: NOT_FOUND if there is no such file, FAILED_PRECONDITION if it is
  // something else, UNAVAILABLE if it cannot be opened.
  static absl::StatusOr<InputFile> Open(const std::string& path);

  InputFile(InputFile&& other) noexcept { *this = std::move(other); }
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // at Open

  // Reads exactly `bytes` bytes at an offset. Errors: DATA_LOSS where the file
  // ends before, UNAVAILABLE; with the path.
  absl::Status Read(int64_t offset, void* out, int64_t bytes) const;

 private:
  InputFile() = default;

  std::string path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
};

absl::Status SyncDirectory(FileSystem& files, const std::string& directory);

// Makes a directory and those above it; the name of each new one is synced. One
// that is there is as good as made.
absl::Status MakeDirectories(FileSystem& files, const std::string& path);

// Makes a directory of a name that is not in use, PREFIX0, PREFIX1, ..., and
// returns it.
absl::StatusOr<std::string> MakeNumbered(FileSystem& files,
                                         const std::string& prefix);

// Removes a directory of plain files; a missing one is as good as removed.
// Removes what it can and returns the first error.
absl::Status RemoveTree(FileSystem& files, const std::string& directory);

}  // namespace ebb
