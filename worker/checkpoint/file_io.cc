// See file_io.h.
#include "worker/checkpoint/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace ebb {
namespace {

// 0 or an errno.
int Make(FileSystem& files, const std::string& path) {
  const size_t slash = path.find_last_of('/');
  const std::string above = slash == std::string::npos
                                ? "."
                                : path.substr(0, std::max(slash, size_t{1}));
  int error = files.MakeDirectory(path);
  if (error == ENOENT && slash != std::string::npos && slash != 0) {
    error = Make(files, above);
    if (error == 0) error = files.MakeDirectory(path);
  }
  if (error == EEXIST) return 0;
  return error == 0 ? files.SyncDirectory(above) : error;
}

}  // namespace

absl::Status IoError(absl::string_view operation, absl::string_view path,
                     int error) {
  const std::string text = absl::StrCat("could not ", operation, " ", path,
                                        ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(text);
  }
  return absl::UnavailableError(text);
}

std::string PathWithin(absl::string_view directory, absl::string_view name) {
  return absl::StrCat(directory, "/", name);
}

OutputFile::OutputFile(FileSystem& files, std::string path)
    : files_(files), path_(std::move(path)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) files_.Close(descriptor_);
}

absl::Status OutputFile::Create() {
  if (const int error = files_.Create(path_, &descriptor_)) {
    descriptor_ = -1;
    return IoError("create", path_, error);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Write(const void* data, int64_t bytes) {
  if (const int error = files_.Write(descriptor_, data, bytes)) {
    return IoError("write", path_, error);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::SyncAndClose() {
  if (const int error = files_.Sync(descriptor_)) {
    return IoError("sync", path_, error);
  }
  const int error = files_.Close(descriptor_);
  descriptor_ = -1;
  if (error != 0) return IoError("close", path_, error);
  return absl::OkStatus();
}

absl::StatusOr<InputFile> InputFile::Open(const std::string& path) {
  InputFile file;
  file.path_ = path;
  // O_NONBLOCK: a FIFO in its place must not wait for a writer.
  file.descriptor_ =
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat info;
  if (file.descriptor_ < 0 || fstat(file.descriptor_, &info) != 0) {
    return errno == ENOENT || errno == ENOTDIR
               ? absl::NotFoundError(absl::StrCat(path, " is missing"))
               : IoError("open", path, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is no regular file"));
  }
  file.bytes_ = info.st_size;
  return file;
}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  bytes_ = other.bytes_;
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status InputFile::Read(int64_t offset, void* out, int64_t bytes) const {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t count = pread(
        descriptor_, to, std::min<int64_t>(bytes, int64_t{1} << 30), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return IoError("read", path_, errno);
    if (count == 0) {
      return absl::DataLossError(
          absl::StrCat(path_, " ends ", bytes, " bytes early at ", offset));
    }
    to += count;
    offset += count;
    bytes -= count;
  }
  return absl::OkStatus();
}

absl::Status SyncDirectory(FileSystem& files, const std::string& directory) {
  const int error = files.SyncDirectory(directory);
  return error == 0 ? absl::OkStatus() : IoError("sync", directory, error);
}

absl::Status MakeDirectories(FileSystem& files, const std::string& path) {
  const int error = Make(files, path);
  return error == 0 ? absl::OkStatus() : IoError("create", path, error);
}

absl::StatusOr<std::string> MakeNumbered(FileSystem& files,
                                         const std::string& prefix) {
  constexpr int kMostNames = 10000;
  for (int k = 0; k < kMostNames; ++k) {
    const std::string path = absl::StrCat(prefix, k);
    const int error = files.MakeDirectory(path);
    if (error == 0) return path;
    if (error != EEXIST) return IoError("create", path, error);
  }
  return absl::UnavailableError(
      absl::StrCat("too many directories named ", prefix, "N: remove them"));
}

absl::Status RemoveTree(FileSystem& files, const std::string& directory) {
  std::vector<std::string> names;
  int error = files.List(directory, &names);
  if (error == ENOENT) return absl::OkStatus();
  for (const std::string& name : names) {
    const int failed = files.RemoveFile(PathWithin(directory, name));
    if (error == 0 && failed != ENOENT) error = failed;
  }
  const int failed = files.RemoveDirectory(directory);
  if (error == 0 && failed != ENOENT) error = failed;
  return error == 0 ? absl::OkStatus() : IoError("remove", directory, error);
}

}  // namespace ebb
