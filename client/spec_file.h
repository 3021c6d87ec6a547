// A spec as a user names it: a file or standard input, with --set on top.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/environment.h"

namespace ebb {

namespace v1 {
class JobSpec;
}

// What errors call standard input.
inline constexpr char kStandardInput[] = "<stdin>";

// The name under which errors show the spec at `path`.
std::string SpecFileName(const std::string& path);

// Reads and checks the spec at `path`; "-": standard input. Its relative paths
// are made absolute.
// Errors: NOT_FOUND, PERMISSION_DENIED for the file; else those of ReadSpec.
absl::StatusOr<v1::JobSpec> LoadSpec(const Environment& environment,
                                     const std::string& path,
                                     const std::vector<std::string>& sets);

}  // namespace ebb
