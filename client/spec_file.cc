// See spec_file.h.
#include "client/spec_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "proto/spec.pb.h"

namespace ebb {
namespace {

// One byte more than a spec may have, so that the reader sees that it is too
// long; a wrong file of any size is not read whole.
std::string ReadLimited(std::istream& stream) {
  std::string text(kMaxSpecBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  return text;
}

}  // namespace

absl::StatusOr<SpecReading> LoadSpec(const Environment& environment,
                                     const std::string& path,
                                     const std::vector<std::string>& sets) {
  SpecDirectories directories;
  directories.sets = environment.working_directory;
  if (path == "-") {
    directories.file = environment.working_directory;
    return ReadSpecWithPlaces(ReadLimited(*environment.in), kStandardInput,
                              sets, directories);
  }
  const std::filesystem::path file = environment.AbsolutePath(path);
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a directory, not a spec: ", path));
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    const int code = errno;
    const std::string message =
        absl::StrCat("cannot read the spec: ", path, ": ", std::strerror(code));
    return code == ENOENT ? absl::NotFoundError(message)
                          : absl::PermissionDeniedError(message);
  }
  directories.file = file.parent_path().string();
  return ReadSpecWithPlaces(ReadLimited(stream), path, sets, directories);
}

}  // namespace ebb
