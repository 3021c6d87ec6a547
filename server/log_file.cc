// pread and a search for newlines from the end.
#include "server/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace ebb {
namespace {

constexpr int64_t kBlockBytes = 64 << 10;

// Closes a descriptor when it goes away.
struct File {
  int fd = -1;
  ~File() {
    if (fd >= 0) close(fd);
  }
};

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::InternalError(
      absl::StrCat(what, " ", path, ": ", strerror(errno)));
}

absl::Status ReadAt(int fd, const std::string& path, int64_t offset,
                    std::string* bytes) {
  size_t got = 0;
  while (got < bytes->size()) {
    const ssize_t n = pread(fd, bytes->data() + got, bytes->size() - got,
                            static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError("cannot read", path);
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  bytes->resize(got);
  return absl::OkStatus();
}

// -1: there is none. Logs are plain files: a link is not followed.
absl::StatusOr<int> OpenLog(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 && errno != ENOENT) return SystemError("cannot open", path);
  return fd;
}

// Length of the valid UTF-8 sequence at the start of `s`; 0: none.
size_t Utf8Length(absl::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(0);
  size_t length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;  // bounds of the second byte
  if (lead >= 0x01 && lead <= 0x7F) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  if (length == 0 || s.size() < length) return 0;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

}  // namespace

std::string LogFilePath(absl::string_view attempt_directory, int rank) {
  return absl::StrCat(attempt_directory, "/rank-", rank, ".log");
}

absl::StatusOr<std::string> ReadLog(const std::string& path, int64_t offset,
                                    int64_t max_bytes) {
  File file;
  EBB_ASSIGN_OR_RETURN(file.fd, OpenLog(path));
  if (file.fd < 0) return std::string();
  std::string bytes(static_cast<size_t>(max_bytes), '\0');
  EBB_RETURN_IF_ERROR(ReadAt(file.fd, path, offset, &bytes));
  return bytes;
}

absl::StatusOr<int64_t> TailOffset(const std::string& path, int num_lines,
                                   int64_t max_bytes) {
  File file;
  EBB_ASSIGN_OR_RETURN(file.fd, OpenLog(path));
  if (file.fd < 0) return 0;
  struct stat info;
  if (fstat(file.fd, &info) != 0) return SystemError("cannot stat", path);
  const int64_t size = info.st_size;
  const int64_t floor = std::max<int64_t>(0, size - max_bytes);
  int newlines = 0;
  for (int64_t end = size; end > floor;) {
    const int64_t begin = std::max(floor, end - kBlockBytes);
    std::string block(static_cast<size_t>(end - begin), '\0');
    EBB_RETURN_IF_ERROR(ReadAt(file.fd, path, begin, &block));
    for (int64_t i = static_cast<int64_t>(block.size()) - 1; i >= 0; --i) {
      // The newline that ends the file begins no line.
      if (block[static_cast<size_t>(i)] != '\n' || begin + i == size - 1) {
        continue;
      }
      if (++newlines == num_lines) return begin + i + 1;
    }
    end = begin;
  }
  return floor;
}

std::string ToUtf8(absl::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t length = Utf8Length(bytes);
    if (length == 0) {
      text.push_back('?');
      bytes.remove_prefix(1);
    } else {
      text.append(bytes.data(), length);
      bytes.remove_prefix(length);
    }
  }
  return text;
}

}  // namespace ebb
