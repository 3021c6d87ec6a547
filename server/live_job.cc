// See live_job.h.
#include "server/live_job.h"

#include "absl/strings/str_cat.h"
#include "server/log_file.h"

namespace ebb {
namespace {

constexpr size_t kMaxMessageBytes = 4096;

}  // namespace

std::string AttemptDirectory(const v1::Job& job) {
  return absl::StrCat(job.directory(), "/attempt-", job.attempt());
}

void SetTime(absl::Time time, google::protobuf::Timestamp* timestamp) {
  const int64_t nanos = absl::ToUnixNanos(time);
  timestamp->set_seconds(nanos / 1000000000);
  timestamp->set_nanos(static_cast<int32_t>(nanos % 1000000000));
}

std::string CutMessage(absl::string_view text) {
  if (text.size() <= kMaxMessageBytes) return std::string(text);
  return ToUtf8(absl::StrCat(text.substr(0, kMaxMessageBytes), "..."));
}

}  // namespace ebb
