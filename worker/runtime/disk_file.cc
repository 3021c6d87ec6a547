// The system calls behind a file without a name.
#include "worker/runtime/disk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace ebb {
namespace {

// Long enough that a call costs little beside it, small beside any arena.
constexpr int64_t kBufferBytes = int64_t{1} << 20;

int64_t BlocksUp(int64_t bytes) {
  return (bytes + kDiskBlockBytes - 1) / kDiskBlockBytes * kDiskBlockBytes;
}

absl::Status DiskError(int error, absl::string_view what,
                       const std::string& path) {
  const std::string text = absl::StrCat("offload directory ", path, ": ", what,
                                        ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT || error == EFBIG
             ? absl::ResourceExhaustedError(text)
             : absl::FailedPreconditionError(text);
}

// A file that has no name or, where the file system makes none without one, has
// it for a moment only: one that no other process takes, in containers with the
// same process ids neither.
absl::StatusOr<int> OpenWithoutName(const std::string& directory) {
  int descriptor =
      open(directory.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor >= 0) return descriptor;
  std::string path = directory + "/ebb-values-XXXXXX";
  descriptor = mkostemp(path.data(), O_CLOEXEC);
  if (descriptor < 0) {
    return DiskError(errno, "no file can be made in it", directory);
  }
  if (unlink(path.c_str()) == 0) return descriptor;
  const int error = errno;
  close(descriptor);
  return DiskError(error, "its file cannot be removed", directory);
}

// Around the page cache or through it; returns whether it is around.
bool SetDirect(int descriptor, bool direct) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0) return false;
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  if (fcntl(descriptor, F_SETFL, wanted) == 0) return direct;
  return (flags & O_DIRECT) != 0;
}

}  // namespace

void DiskFile::FreeBuffer::operator()(std::byte* buffer) const {
  std::free(buffer);
}

absl::StatusOr<std::unique_ptr<DiskFile>> DiskFile::Create(
    const std::string& directory, int64_t bytes) {
  EBB_ASSIGN_OR_RETURN(const int descriptor, OpenWithoutName(directory));
  std::unique_ptr<DiskFile> file(
      new DiskFile(directory, descriptor, SetDirect(descriptor, true)));
  EBB_RETURN_IF_ERROR(file->Grow(bytes));
  return file;
}

DiskFile::DiskFile(std::string directory, int descriptor, bool is_direct)
    : directory_(std::move(directory)),
      descriptor_(descriptor),
      is_direct_(is_direct),
      buffer_(static_cast<std::byte*>(
          std::aligned_alloc(kDiskBlockBytes, kBufferBytes))) {
  EBB_CHECK(buffer_ != nullptr);
  // Resident now rather than in the first step, and nothing of others in it.
  std::memset(buffer_.get(), 0, kBufferBytes);
}

DiskFile::~DiskFile() { close(descriptor_); }

absl::Status DiskFile::Grow(int64_t bytes) {
  EBB_CHECK(bytes >= 1 && bytes >= bytes_);
  int error = posix_fallocate(descriptor_, 0, BlocksUp(bytes));
  // Where the file system cannot, the C library writes a byte to each block,
  // which is no way around the page cache.
  if ((error == EINVAL || error == EOPNOTSUPP) && GiveUpDirect()) {
    error = posix_fallocate(descriptor_, 0, BlocksUp(bytes));
  }
  if (error != 0) {
    // Some blocks may have been had.
    if (bytes_ > 0) Shrink(bytes_);
    return DiskError(error,
                     absl::StrCat("no room for ", BlocksUp(bytes), " bytes"),
                     directory_);
  }
  bytes_ = bytes;
  return absl::OkStatus();
}

void DiskFile::Shrink(int64_t bytes) {
  EBB_CHECK(bytes >= 1 && bytes <= bytes_);
  // Where it fails the blocks stay taken, which does no harm.
  if (ftruncate(descriptor_, BlocksUp(bytes)) != 0) return;
  bytes_ = bytes;
}

bool DiskFile::GiveUpDirect() {
  if (!is_direct_) return false;
  is_direct_ = SetDirect(descriptor_, false);
  return !is_direct_;
}

absl::Status DiskFile::Write(int64_t offset, const std::byte* data,
                             int64_t bytes) {
  while (bytes > 0) {
    const int64_t part = std::min(bytes, kBufferBytes);
    std::memcpy(buffer_.get(), data, static_cast<size_t>(part));
    const int64_t whole = BlocksUp(part);
    for (int64_t done = 0; done < whole;) {
      const ssize_t written =
          pwrite(descriptor_, buffer_.get() + done,
                 static_cast<size_t>(whole - done), offset + done);
      if (written > 0) {
        done += written;
        continue;
      }
      if (written < 0 && errno == EINTR) continue;
      if (written < 0 && errno == EINVAL && GiveUpDirect()) continue;
      return DiskError(written == 0 ? ENOSPC : errno,
                       absl::StrCat("cannot write ", whole, " bytes"),
                       directory_);
    }
    data += part;
    bytes -= part;
    offset += whole;
  }
  return absl::OkStatus();
}

absl::Status DiskFile::Read(int64_t offset, std::byte* data, int64_t bytes) {
  while (bytes > 0) {
    const int64_t part = std::min(bytes, kBufferBytes);
    const int64_t whole = BlocksUp(part);
    for (int64_t done = 0; done < whole;) {
      const ssize_t read =
          pread(descriptor_, buffer_.get() + done,
                static_cast<size_t>(whole - done), offset + done);
      if (read > 0) {
        done += read;
        continue;
      }
      if (read < 0 && errno == EINTR) continue;
      if (read < 0 && errno == EINVAL && GiveUpDirect()) continue;
      return DiskError(read == 0 ? EIO : errno,
                       absl::StrCat("cannot read ", whole, " bytes"),
                       directory_);
    }
    std::memcpy(data, buffer_.get(), static_cast<size_t>(part));
    data += part;
    bytes -= part;
    offset += whole;
  }
  return absl::OkStatus();
}

}  // namespace ebb
