// File operations by POSIX and, for the exchange, Linux calls.
#include "worker/checkpoint/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ebb {
namespace {

// Linux writes at most 0x7ffff000 bytes in one call.
constexpr int64_t kMaxWrite = int64_t{1} << 30;

int Result(int result) { return result == 0 ? 0 : errno; }

class Posix final : public FileSystem {
 public:
  int MakeDirectory(const std::string& path) override {
    return Result(mkdir(path.c_str(), 0777));
  }

  int Create(const std::string& path, int* descriptor) override {
    *descriptor =
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return *descriptor < 0 ? errno : 0;
  }

  int Write(int descriptor, const void* data, int64_t bytes) override {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t count = write(descriptor, from, std::min(bytes, kMaxWrite));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno;
      if (count == 0) return ENOSPC;
      from += count;
      bytes -= count;
    }
    return 0;
  }

  int Sync(int descriptor) override { return Result(fsync(descriptor)); }

  int Close(int descriptor) override { return Result(close(descriptor)); }

  int SyncDirectory(const std::string& path) override {
    const int descriptor =
        open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return errno;
    const int error = Result(fsync(descriptor));
    close(descriptor);
    return error;
  }

  int Rename(const std::string& from, const std::string& to) override {
    return Result(rename(from.c_str(), to.c_str()));
  }

  int Exchange(const std::string& a, const std::string& b) override {
    return Result(
        renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE));
  }

  int List(const std::string& path, std::vector<std::string>* names) override {
    names->clear();
    DIR* directory = opendir(path.c_str());
    if (directory == nullptr) return errno;
    errno = 0;
    while (const dirent* entry = readdir(directory)) {
      if (std::strcmp(entry->d_name, ".") != 0 &&
          std::strcmp(entry->d_name, "..") != 0) {
        names->push_back(entry->d_name);
      }
    }
    const int error = errno;
    closedir(directory);
    return error;
  }

  int RemoveFile(const std::string& path) override {
    return Result(unlink(path.c_str()));
  }

  int RemoveDirectory(const std::string& path) override {
    return Result(rmdir(path.c_str()));
  }
};

}  // namespace

FileSystem& PosixFileSystem() {
  static Posix file_system;
  return file_system;
}

}  // namespace ebb
