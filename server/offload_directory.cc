#include "server/offload_directory.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "proto/violations.h"

namespace ebb {

absl::Status CheckOffloadDirectory(const std::string& directory) {
  struct stat found;
  if (stat(directory.c_str(), &found) != 0) {
    const int error = errno;
    return error == ENOENT
               ? absl::NotFoundError("there is no such directory")
               : absl::FailedPreconditionError(std::strerror(error));
  }
  if (!S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError("must be a directory");
  }
  // What may be made there only trying tells: permissions say nothing of a file
  // system that takes no files.
  std::string path = absl::StrCat(directory, "/ebb-check-XXXXXX");
  const int descriptor = mkstemp(path.data());
  if (descriptor < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("takes no files: ", std::strerror(errno)));
  }
  (void)unlink(path.c_str());
  close(descriptor);
  return absl::OkStatus();
}

absl::Status CheckOffloadRoom(const v1::MemorySpec& memory,
                              const std::string& default_directory,
                              int64_t bytes) {
  if (bytes <= 0) return absl::OkStatus();
  const bool is_named = !memory.offload_dir().empty();
  const std::string& directory =
      is_named ? memory.offload_dir() : default_directory;
  absl::Status status = CheckOffloadDirectory(directory);
  struct statvfs space;
  if (status.ok() && statvfs(directory.c_str(), &space) == 0) {
    const auto have = static_cast<int64_t>(space.f_bavail) *
                      static_cast<int64_t>(space.f_frsize);
    if (have < bytes) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("has no room for what waits on disk: need ", bytes,
                       " bytes, have ", have));
    }
  }
  if (status.ok()) return status;
  v1::Violation violation;
  violation.set_field("memory.offload_dir");
  violation.set_value(directory);
  violation.set_rule(std::string(status.message()));
  // The fields that put something there.
  const char* const fields =
      memory.offload() != v1::OFFLOAD_DISK ? "memory.offload_optimizer: host"
      : memory.offload_optimizer() != v1::OFFLOAD_DISK
          ? "memory.offload: host"
          : "memory.offload and memory.offload_optimizer: host";
  violation.set_fix(is_named
                        ? absl::StrCat("name another directory, or remove it "
                                       "and set ",
                                       fields)
                        : absl::StrCat("set memory.offload_dir, or ", fields));
  return ViolationsStatus(status.code(), {violation});
}

}  // namespace ebb
