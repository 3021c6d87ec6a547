// Makes the calling process independent of whoever started it.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace ebb {

// New session, working directory /, standard input /dev/null, standard output
// and error appended to `log_path` (absolute), all other descriptors closed,
// SIGHUP and SIGPIPE ignored. Called before the process has threads or open
// files. On an error (INTERNAL, with the path) nothing has changed.
absl::Status DetachProcess(const std::string& log_path);

}  // namespace ebb
