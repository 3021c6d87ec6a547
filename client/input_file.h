// Files that a command line names, read whole.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/environment.h"

namespace ebb {

// The name under which errors show the file at `path`: "-" is standard input.
std::string InputFileName(const std::string& path);

// The first most_bytes of the file at `path`, a `what`; "-": of standard input.
// A wrong file of any size is not read whole: one byte more than is allowed
// shows that it is too long.
// Errors: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT for a directory.
absl::StatusOr<std::string> ReadInputFile(const Environment& environment,
                                          const std::string& path,
                                          const std::string& what,
                                          size_t most_bytes);

}  // namespace ebb
