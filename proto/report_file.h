// The file in which a rank leaves the reports that no coordinator has
// acknowledged when it ends: ATTEMPT_DIR/rank-R.reports. The coordinator reads
// it when it finds the attempt again, and treats every message as if it had
// come over the stream: in order, those numbered up to the last stored one
// skipped. The last message is usually `finished`.
//
// Format, integers little endian:
//   8 bytes   "ebbrep01"
//   8 bytes   number of messages
//   then for each message: 4 bytes length, and so many bytes of a serialized
//   ebb.v1.WorkerMessage.
// Nothing follows the last message. The file appears complete or not at all
// (written beside, flushed, renamed).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ebb {
namespace v1 {
class WorkerMessage;
}

// "DIRECTORY/rank-R.reports".
std::string ReportFilePath(absl::string_view attempt_directory, int rank);

// Writes serialized WorkerMessages; replaces a file that is there.
// Errors: INTERNAL with the system's reason and the path.
absl::Status WriteReportFile(const std::string& path,
                             std::span<const std::string> messages);

// Reads the file back. Errors: NOT_FOUND if there is none; DATA_LOSS with path
// and offset if it is not what WriteReportFile writes; INTERNAL if it cannot
// be read.
absl::StatusOr<std::vector<v1::WorkerMessage>> ReadReportFile(
    const std::string& path);

}  // namespace ebb
