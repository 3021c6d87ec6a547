// Log records for people and machines: one logfmt line on standard error each.
//
//   EBB_LOG(INFO) << "listening on " << path;
//   time=2026-01-02T03:04:05.678Z level=info message="listening on /run/s"
//     source=server/main.cc:40 job=k3j2h1g0 attempt=1 rank=0        (one line)
//
// A line is written by one write(2), so lines of several threads, and of
// several processes that append to one file, never mix. Everything here may be
// called from any thread. Levels: INFO, WARNING, ERROR.
#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ebb {

enum class LogLevel : uint8_t { kInfo, kWarning, kError, kOff };

// What every record of this process carries; empty and -1 are left out.
struct LogFields {
  std::string job;
  int attempt = -1;
  int rank = -1;
};

// Sets the fields of all later records; called once, early in main.
void SetLogFields(LogFields fields);

// Records below the level are dropped and their operands are not evaluated.
// Default: kInfo.
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);

// "info", "warning", "error" or "off"; nothing for another word.
std::optional<LogLevel> ParseLogLevel(absl::string_view word);

// The line of one record, newline included. `file` is shown relative to the
// root of the source tree where it lies in it.
std::string FormatLogRecord(absl::Time time, LogLevel level,
                            absl::string_view message, absl::string_view file,
                            int line, const LogFields& fields);

// Gathers one record and writes it when destroyed; only EBB_LOG makes one.
class LogRecord {
 public:
  LogRecord(LogLevel level, const char* file, int line)
      : level_(level), file_(file), line_(line) {}
  ~LogRecord();
  LogRecord(const LogRecord&) = delete;
  LogRecord& operator=(const LogRecord&) = delete;

  std::ostream& stream() { return stream_; }

 private:
  LogLevel level_;
  const char* file_;
  int line_;
  std::ostringstream stream_;
};

// Gives both arms of EBB_LOG's ?: the type void; & binds weaker than <<.
struct LogRecordEnd {
  void operator&(std::ostream&) const {}
};

}  // namespace ebb

#define EBB_LOG_LEVEL_INFO ::ebb::LogLevel::kInfo
#define EBB_LOG_LEVEL_WARNING ::ebb::LogLevel::kWarning
#define EBB_LOG_LEVEL_ERROR ::ebb::LogLevel::kError

// An expression, so that it stands anywhere a statement does.
#define EBB_LOG(level)                                                  \
  !::ebb::LogEnabled(EBB_LOG_LEVEL_##level)                             \
      ? (void)0                                                         \
      : ::ebb::LogRecordEnd() &                                         \
            ::ebb::LogRecord(EBB_LOG_LEVEL_##level, __FILE__, __LINE__) \
                .stream()
