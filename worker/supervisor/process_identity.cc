// Reads /proc/PID/stat.
#include "worker/supervisor/process_identity.h"

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ebb {

absl::StatusOr<int64_t> ParseStartTicks(absl::string_view stat) {
  // Field 2 is the program's name in parentheses and may hold both spaces and
  // parentheses; field 3 is behind the last one.
  size_t end_of_name = stat.rfind(')');
  if (end_of_name != absl::string_view::npos) {
    std::vector<absl::string_view> fields = absl::StrSplit(
        stat.substr(end_of_name + 1), ' ', absl::SkipWhitespace());
    int64_t ticks;
    if (fields.size() > 22 - 3 && absl::SimpleAtoi(fields[22 - 3], &ticks)) {
      return ticks;
    }
  }
  return absl::InternalError(
      absl::StrCat("no start time in process status: ", stat));
}

absl::StatusOr<int64_t> ReadStartTicks(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string stat(std::istreambuf_iterator<char>(file), {});
  if (stat.empty()) {
    return absl::NotFoundError(absl::StrCat("no such process: ", pid));
  }
  return ParseStartTicks(stat);
}

}  // namespace ebb
