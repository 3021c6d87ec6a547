// Write beside, flush, rename, flush the directory.
#include "worker/supervisor/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "kernels/status.h"

namespace ebb {
namespace {

absl::Status SystemError(const char* verb, const std::string& path) {
  return absl::InternalError(
      absl::StrCat("cannot ", verb, ": ", std::strerror(errno), ": ", path));
}

absl::Status WriteAndFlush(const std::string& path, absl::string_view content) {
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return SystemError("create", path);
  absl::Cleanup closer = [fd] { close(fd); };
  while (!content.empty()) {
    ssize_t written = write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("write", path);
    content.remove_prefix(written);
  }
  if (fsync(fd) != 0) return SystemError("flush", path);
  return absl::OkStatus();
}

absl::Status FlushDirectoryOf(const std::string& path) {
  std::string directory = path.substr(0, path.rfind('/') + 1) + ".";
  int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError("open", directory);
  absl::Cleanup closer = [fd] { close(fd); };
  if (fsync(fd) != 0) return SystemError("flush", directory);
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteAtomicFile(const std::string& path,
                             absl::string_view content) {
  std::string unfinished = path + ".tmp";
  EBB_RETURN_IF_ERROR(WriteAndFlush(unfinished, content));
  if (rename(unfinished.c_str(), path.c_str()) != 0) {
    return SystemError("rename", unfinished);
  }
  return FlushDirectoryOf(path);
}

}  // namespace ebb
