// See input_file.h.
#include "client/input_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace ebb {
namespace {

std::string ReadLimited(std::istream& stream, size_t most_bytes) {
  std::string text(most_bytes, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  return text;
}

}  // namespace

std::string InputFileName(const std::string& path) {
  return path == "-" ? "<stdin>" : path;
}

absl::StatusOr<std::string> ReadInputFile(const Environment& environment,
                                          const std::string& path,
                                          const std::string& what,
                                          size_t most_bytes) {
  if (path == "-") return ReadLimited(*environment.in, most_bytes);
  const std::filesystem::path file = environment.AbsolutePath(path);
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a directory, not a ", what, ": ", path));
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    const int code = errno;
    const std::string message = absl::StrCat("cannot read the ", what, ": ",
                                             path, ": ", std::strerror(code));
    return code == ENOENT ? absl::NotFoundError(message)
                          : absl::PermissionDeniedError(message);
  }
  return ReadLimited(stream, most_bytes);
}

}  // namespace ebb
