// Reads the logs of ranks: always in bounded pieces, whatever the file holds
// (lines without end, NULs, bytes that are no UTF-8).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ebb {

// "DIRECTORY/rank-R.log".
std::string LogFilePath(absl::string_view attempt_directory, int rank);

// Up to max_bytes from the offset; empty at the end, beyond it, or where there
// is no file yet. Errors: INTERNAL with the system's reason.
absl::StatusOr<std::string> ReadLog(const std::string& path, int64_t offset,
                                    int64_t max_bytes);

// Where the last `num_lines` lines begin, looking back no further than
// max_bytes. A last line without newline counts.
absl::StatusOr<int64_t> TailOffset(const std::string& path, int num_lines,
                                   int64_t max_bytes);

// The text with every byte that is not part of valid UTF-8, and every NUL,
// replaced by '?'.
std::string ToUtf8(absl::string_view bytes);

}  // namespace ebb
