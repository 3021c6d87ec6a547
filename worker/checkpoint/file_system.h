// The file operations that a checkpoint is made of, as a seam: tests let any of
// them fail, or let the process "die" before it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ebb {

// All operations return 0 or an errno. Paths are used as given. No state: any
// thread may call.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual int MakeDirectory(const std::string& path) = 0;
  // Creates a file for writing; it must not exist.
  virtual int Create(const std::string& path, int* descriptor) = 0;
  // Writes all bytes or fails.
  virtual int Write(int descriptor, const void* data, int64_t bytes) = 0;
  virtual int Sync(int descriptor) = 0;
  virtual int Close(int descriptor) = 0;
  virtual int SyncDirectory(const std::string& path) = 0;
  virtual int Rename(const std::string& from, const std::string& to) = 0;
  // Swaps two existing names at once. ENOSYS or EINVAL where the file system
  // has no such operation.
  virtual int Exchange(const std::string& a, const std::string& b) = 0;
  // Names within a directory, without "." and "..", in no order.
  virtual int List(const std::string& path,
                   std::vector<std::string>* names) = 0;
  virtual int RemoveFile(const std::string& path) = 0;
  virtual int RemoveDirectory(const std::string& path) = 0;
};

// The real one.
FileSystem& PosixFileSystem();

}  // namespace ebb
