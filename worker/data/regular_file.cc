// Looking before opening, and reads that end.
#include "worker/data/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ebb {
namespace {

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

absl::Status CannotOpen() {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot open: ", std::strerror(errno)));
}

absl::Status NotRegular(mode_t mode) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected a regular file, found ", KindOf(mode)));
}

}  // namespace

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path) {
  // Opening a FIFO waits for its writer and opening a device may act on it, so
  // look first; O_NONBLOCK for what takes its place in between.
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return CannotOpen();
  if (!S_ISREG(info.st_mode)) return NotRegular(info.st_mode);
  RegularFile file;
  file.descriptor_ =
      open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (file.descriptor_ < 0 || fstat(file.descriptor_, &info) != 0) {
    return CannotOpen();
  }
  if (!S_ISREG(info.st_mode)) return NotRegular(info.st_mode);
  file.bytes_ = info.st_size;
  file.device_ = info.st_dev;
  file.inode_ = info.st_ino;
  return file;
}

RegularFile& RegularFile::operator=(RegularFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  bytes_ = other.bytes_;
  device_ = other.device_;
  inode_ = other.inode_;
  return *this;
}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status RegularFile::ReadAt(int64_t offset, void* out,
                                 int64_t bytes) const {
  char* to = static_cast<char*>(out);
  for (int64_t done = 0; done < bytes;) {
    const ssize_t count =
        pread(descriptor_, to + done, bytes - done, offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot read: ", std::strerror(errno)));
    }
    if (count == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("cut short while it was read, at byte ", offset + done));
    }
    done += count;
  }
  return absl::OkStatus();
}

}  // namespace ebb
