// Small files that are complete or not there at all, also after a power cut.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ebb {

// Writes to PATH.tmp, flushes, renames, flushes the directory; replaces a file
// that is there. One writer a path. Errors: INTERNAL with the system's reason
// and the path.
absl::Status WriteAtomicFile(const std::string& path,
                             absl::string_view content);

}  // namespace ebb
