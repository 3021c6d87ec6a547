// Parser of the two lines of /proc/self/status that count.
#include "worker/runtime/resident_memory.h"

#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/status.h"

namespace ebb {
namespace {

// Finds "Name:   123 kB" and returns 123 * 1024.
absl::StatusOr<int64_t> FieldBytes(absl::string_view status,
                                   absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::ConsumePrefix(&line, name)) continue;
    if (!absl::ConsumePrefix(&line, ":")) continue;
    int64_t kibibytes = 0;
    absl::ConsumeSuffix(&line, "kB");
    if (!absl::SimpleAtoi(line, &kibibytes)) break;
    return kibibytes * 1024;
  }
  return absl::InternalError(
      absl::StrCat("no field ", name, " in the process's status"));
}

}  // namespace

absl::StatusOr<int64_t> ParseResidentBytes(absl::string_view status) {
  EBB_ASSIGN_OR_RETURN(const int64_t anonymous, FieldBytes(status, "RssAnon"));
  EBB_ASSIGN_OR_RETURN(const int64_t shared, FieldBytes(status, "RssShmem"));
  return anonymous + shared;
}

absl::StatusOr<int64_t> ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) {
    return absl::InternalError("cannot open /proc/self/status");
  }
  // The file is about 1.5 kB; the fields wanted stand in its first half.
  char text[8192];
  const size_t length = std::fread(text, 1, sizeof(text), file);
  std::fclose(file);
  return ParseResidentBytes(absl::string_view(text, length));
}

}  // namespace ebb
