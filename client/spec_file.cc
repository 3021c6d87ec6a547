// See spec_file.h.
#include "client/spec_file.h"

#include <filesystem>

#include "client/input_file.h"
#include "kernels/status.h"
#include "proto/spec.pb.h"

namespace ebb {

absl::StatusOr<SpecReading> LoadSpec(const Environment& environment,
                                     const std::string& path,
                                     const std::vector<std::string>& sets) {
  SpecDirectories directories;
  directories.sets = environment.working_directory;
  // One byte more than a spec may have, so that the reader sees that it is too
  // long.
  EBB_ASSIGN_OR_RETURN(
      const std::string text,
      ReadInputFile(environment, path, "spec", kMaxSpecBytes + 1));
  if (path == "-") {
    directories.file = environment.working_directory;
  } else {
    const std::filesystem::path file = environment.AbsolutePath(path);
    directories.file = file.parent_path().string();
  }
  return ReadSpecWithPlaces(text, InputFileName(path), sets, directories);
}

}  // namespace ebb
