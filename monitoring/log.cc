// Formats records and writes them to standard error.
#include "monitoring/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace ebb {
namespace {

std::atomic<LogLevel> log_level{LogLevel::kInfo};

// Never destroyed: threads may log while the process ends.
struct Fields {
  absl::Mutex mutex;
  LogFields value ABSL_GUARDED_BY(mutex);
};
Fields& ProcessFields() {
  static Fields* fields = new Fields;
  return *fields;
}

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
    case LogLevel::kOff:
      break;
  }
  return "off";
}

// Quotes so that a record stays one line and any logfmt reader finds the end.
// Bytes above 0x7f pass: messages are UTF-8.
std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    switch (c) {
      case '"':
        quoted += "\\\"";
        break;
      case '\\':
        quoted += "\\\\";
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\r':
        quoted += "\\r";
        break;
      case '\t':
        quoted += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          absl::StrAppend(&quoted, "\\u",
                          absl::Hex(static_cast<int>(c), absl::kZeroPad4));
        } else {
          quoted += c;
        }
    }
  }
  quoted += '"';
  return quoted;
}

// The build names sources by absolute path, and this file tells where the root
// is; or, with a compiler cache, by path from the build folder.
absl::string_view RelativeToTree(absl::string_view file) {
  absl::string_view root = __FILE__;
  if (!absl::ConsumeSuffix(&root, "monitoring/log.cc")) root = "";
  absl::ConsumePrefix(&file, root);
  while (absl::ConsumePrefix(&file, "../")) {
  }
  return file;
}

}  // namespace

void SetLogFields(LogFields fields) {
  Fields& process = ProcessFields();
  absl::MutexLock lock(&process.mutex);
  process.value = std::move(fields);
}

void SetLogLevel(LogLevel level) { log_level = level; }

bool LogEnabled(LogLevel level) { return level >= log_level.load(); }

std::optional<LogLevel> ParseLogLevel(absl::string_view word) {
  for (LogLevel level : {LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError,
                         LogLevel::kOff}) {
    if (word == LevelName(level)) return level;
  }
  return std::nullopt;
}

std::string FormatLogRecord(absl::Time time, LogLevel level,
                            absl::string_view message, absl::string_view file,
                            int line, const LogFields& fields) {
  std::string text = absl::StrCat(
      "time=",
      absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", time, absl::UTCTimeZone()),
      " level=", LevelName(level), " message=", Quoted(message),
      " source=", RelativeToTree(file), ":", line);
  if (!fields.job.empty()) absl::StrAppend(&text, " job=", fields.job);
  if (fields.attempt >= 0) absl::StrAppend(&text, " attempt=", fields.attempt);
  if (fields.rank >= 0) absl::StrAppend(&text, " rank=", fields.rank);
  text += '\n';
  return text;
}

LogRecord::~LogRecord() {
  std::string text;
  {
    Fields& process = ProcessFields();
    absl::MutexLock lock(&process.mutex);
    text = FormatLogRecord(absl::Now(), level_, stream_.str(), file_, line_,
                           process.value);
  }
  absl::string_view rest = text;
  while (!rest.empty()) {
    ssize_t written = write(STDERR_FILENO, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody left to tell
    rest.remove_prefix(written);
  }
}

}  // namespace ebb
