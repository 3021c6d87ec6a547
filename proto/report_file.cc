// Writes and reads the file of unacknowledged reports.
#include "proto/report_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "proto/worker_service.pb.h"

namespace ebb {
namespace {

constexpr char kMagic[] = "ebbrep01";
constexpr size_t kMagicBytes = 8;
constexpr size_t kHeaderBytes = kMagicBytes + sizeof(uint64_t);
constexpr size_t kLengthBytes = sizeof(uint32_t);

absl::Status SystemError(const char* verb, const std::string& path) {
  return absl::InternalError(
      absl::StrCat("cannot ", verb, ": ", std::strerror(errno), ": ", path));
}

template <typename Int>
void AppendLittleEndian(Int value, std::string* bytes) {
  for (size_t i = 0; i < sizeof(Int); ++i) {
    bytes->push_back(static_cast<char>(value >> (8 * i)));
  }
}

template <typename Int>
Int ReadLittleEndian(const char* bytes) {
  Int value = 0;
  for (size_t i = 0; i < sizeof(Int); ++i) {
    value |= static_cast<Int>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

absl::Status WriteAll(int fd, absl::string_view bytes,
                      const std::string& path) {
  while (!bytes.empty()) {
    ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("write", path);
    bytes.remove_prefix(written);
  }
  return absl::OkStatus();
}

absl::Status Flush(const std::string& path, int flags) {
  int fd = open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) return SystemError("open", path);
  absl::Cleanup closer = [fd] { close(fd); };
  if (fsync(fd) != 0) return SystemError("flush", path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) {
    return absl::NotFoundError(absl::StrCat("no such file: ", path));
  }
  if (fd < 0) return SystemError("open", path);
  absl::Cleanup closer = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError("stat", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::DataLossError(absl::StrCat("not a regular file: ", path));
  }
  std::string bytes(info.st_size, '\0');
  size_t num_read = 0;
  while (num_read < bytes.size()) {
    ssize_t got = read(fd, bytes.data() + num_read, bytes.size() - num_read);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("read", path);
    if (got == 0) break;
    num_read += got;
  }
  bytes.resize(num_read);
  return bytes;
}

}  // namespace

std::string ReportFilePath(absl::string_view attempt_directory, int rank) {
  return absl::StrCat(attempt_directory, "/rank-", rank, ".reports");
}

absl::Status WriteReportFile(const std::string& path,
                             std::span<const std::string> messages) {
  std::string unfinished = path + ".tmp";
  int fd =
      open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return SystemError("create", unfinished);
  {
    absl::Cleanup closer = [fd] { close(fd); };
    std::string header(kMagic, kMagicBytes);
    AppendLittleEndian<uint64_t>(messages.size(), &header);
    EBB_RETURN_IF_ERROR(WriteAll(fd, header, unfinished));
    for (const std::string& message : messages) {
      std::string length;
      AppendLittleEndian<uint32_t>(message.size(), &length);
      EBB_RETURN_IF_ERROR(WriteAll(fd, length, unfinished));
      EBB_RETURN_IF_ERROR(WriteAll(fd, message, unfinished));
    }
    if (fsync(fd) != 0) return SystemError("flush", unfinished);
  }
  if (rename(unfinished.c_str(), path.c_str()) != 0) {
    return SystemError("rename", path);
  }
  return Flush(path.substr(0, path.rfind('/') + 1) + ".",
               O_RDONLY | O_DIRECTORY);
}

absl::StatusOr<std::vector<v1::WorkerMessage>> ReadReportFile(
    const std::string& path) {
  EBB_ASSIGN_OR_RETURN(std::string bytes, ReadAll(path));
  auto data_loss = [&](absl::string_view what, size_t offset) {
    return absl::DataLossError(absl::StrCat(what, ": offset ", offset, " of ",
                                            bytes.size(), " in ", path));
  };
  if (bytes.size() < kHeaderBytes ||
      bytes.compare(0, kMagicBytes, kMagic) != 0) {
    return data_loss("no report file", 0);
  }
  uint64_t count = ReadLittleEndian<uint64_t>(bytes.data() + kMagicBytes);
  std::vector<v1::WorkerMessage> messages;
  size_t offset = kHeaderBytes;
  // The count is believed only as far as bytes back it.
  for (uint64_t i = 0; i < count; ++i) {
    if (bytes.size() - offset < kLengthBytes) {
      return data_loss("report file cut short", offset);
    }
    size_t length = ReadLittleEndian<uint32_t>(bytes.data() + offset);
    offset += kLengthBytes;
    if (bytes.size() - offset < length) {
      return data_loss("report file cut short", offset);
    }
    if (!messages.emplace_back().ParseFromArray(bytes.data() + offset,
                                                length)) {
      return data_loss("not a worker message", offset);
    }
    offset += length;
  }
  if (offset != bytes.size()) {
    return data_loss("bytes after the last report", offset);
  }
  return messages;
}

}  // namespace ebb
