// Names a process beyond its pid, which the system uses again.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ebb {

// When the process started, in clock ticks after boot: field 22 of
// /proc/PID/stat. Errors: NOT_FOUND if there is no such process.
absl::StatusOr<int64_t> ReadStartTicks(pid_t pid);

// The same from the file's text. Errors: INTERNAL if it is not such a text.
absl::StatusOr<int64_t> ParseStartTicks(absl::string_view stat);

}  // namespace ebb
