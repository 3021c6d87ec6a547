// mkdir, stat and flock.
#include "server/state_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ebb {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsEmptyDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_empty(path, error) && !error;
}

}  // namespace

absl::StatusOr<std::string> StateDirectoryPath(const std::string& flag) {
  std::string path = flag;
  if (path.empty()) path = Environment("EBB_STATE");
  if (path.empty()) {
    const std::string xdg = Environment("XDG_STATE_HOME");
    const std::string home = Environment("HOME");
    // The XDG rules: a relative value counts as none.
    if (!xdg.empty() && xdg[0] == '/') {
      path = absl::StrCat(xdg, "/ebb");
    } else if (!home.empty()) {
      path = absl::StrCat(home, "/.local/state/ebb");
    } else {
      return absl::InvalidArgumentError(
          "no state directory: set EBB_STATE, or HOME");
    }
  }
  std::error_code error;
  const std::string absolute =
      std::filesystem::absolute(path, error).lexically_normal().string();
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("state directory ", path, ": ", error.message()));
  }
  return absolute.size() > 1 && absolute.back() == '/'
             ? absolute.substr(0, absolute.size() - 1)
             : absolute;
}

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Open(
    const std::string& path) {
  const auto failed = [&](const char* what) {
    return absl::InternalError(
        absl::StrCat(what, " ", path, ": ", strerror(errno)));
  };
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(),
                                      error);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return failed("cannot make");
  }
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return failed("cannot read");
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("not a directory: ", path));
  }
  if (info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state directory belongs to user ", info.st_uid,
                     ", not to ", geteuid(), ": ", path));
  }
  const std::string lock_path = absl::StrCat(path, "/lock");
  if ((info.st_mode & 077) != 0) {
    // Ours, or about to be: closed. Anything else is somebody's directory.
    struct stat lock_info;
    if (!IsEmptyDirectory(path) && stat(lock_path.c_str(), &lock_info) != 0) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "the directory is open to others (mode %o) and holds other files: "
          "%s: close it with chmod 700 or set EBB_STATE to another",
          info.st_mode & 0777, path));
    }
    if (chmod(path.c_str(), 0700) != 0) return failed("cannot close");
  }
  std::unique_ptr<StateDirectory> directory(new StateDirectory);
  directory->path_ = path;
  directory->lock_ =
      open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (directory->lock_ < 0) return failed("cannot open the lock in");
  if (flock(directory->lock_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return failed("cannot lock");
    return absl::FailedPreconditionError(
        absl::StrCat("another ebbd uses this state directory: ", path));
  }
  return directory;
}

bool StateDirectory::IsPresent() const {
  struct stat held;
  struct stat found;
  return fstat(lock_, &held) == 0 &&
         stat(absl::StrCat(path_, "/lock").c_str(), &found) == 0 &&
         held.st_dev == found.st_dev && held.st_ino == found.st_ino;
}

StateDirectory::~StateDirectory() {
  if (lock_ >= 0) close(lock_);
}

}  // namespace ebb
