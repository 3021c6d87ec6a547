// A spec as a user names it: a file or standard input, with --set on top.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/environment.h"
#include "proto/spec_reader.h"

namespace ebb {

// Reads and checks the spec at `path`; "-": standard input. Its relative paths
// are made absolute. Mistakes in the text are the reading's status.
// Errors: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT for the file.
absl::StatusOr<SpecReading> LoadSpec(const Environment& environment,
                                     const std::string& path,
                                     const std::vector<std::string>& sets);

}  // namespace ebb
