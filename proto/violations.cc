#include "proto/violations.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/status.h"
#include "proto/utf8.h"

namespace ebb {

namespace {

// Messages carry UTF-8 only; names of files and pieces of texts may be
// anything.
v1::Violation WithUtf8(v1::Violation violation) {
  for (std::string* text : {violation.mutable_field(), violation.mutable_file(),
                            violation.mutable_value(), violation.mutable_rule(),
                            violation.mutable_fix()}) {
    if (FindInvalidUtf8(*text) != std::string::npos) {
      *text = OneLine(*text, 4096);
    }
  }
  return violation;
}

}  // namespace

std::string OneLine(absl::string_view text, size_t max_bytes) {
  std::string line;
  size_t i = 0;
  while (i < text.size()) {
    const size_t length = Utf8CharacterBytes(text.substr(i));
    const unsigned char c = text[i];
    std::string piece;
    if (length == 0 || c < 0x20 || c == 0x7f) {
      piece = c == '\n'   ? "\\n"
              : c == '\t' ? "\\t"
              : c == '\r' ? "\\r"
                          : absl::StrFormat("\\x%02x", c);
      i += 1;
    } else if (IsControlCharacter(text.substr(i, length))) {
      for (char byte : text.substr(i, length)) {
        absl::StrAppendFormat(&piece, "\\x%02x",
                              static_cast<unsigned char>(byte));
      }
      i += length;
    } else {
      piece = std::string(text.substr(i, length));
      i += length;
    }
    if (line.size() + piece.size() > max_bytes) return line + "...";
    line += piece;
  }
  return line;
}

std::string FormatViolation(const v1::Violation& violation) {
  std::string line = OneLine(violation.file(), 4096);
  if (!line.empty()) {
    if (violation.line() > 0) absl::StrAppend(&line, ":", violation.line());
    absl::StrAppend(&line, ": ");
  }
  if (!violation.field().empty()) {
    absl::StrAppend(&line, OneLine(violation.field(), 200), ": ");
  }
  absl::StrAppend(
      &line, "got ",
      violation.value().empty() ? "nothing" : OneLine(violation.value()), ": ",
      OneLine(violation.rule(), 1000));
  if (!violation.fix().empty()) {
    absl::StrAppend(&line, "; ", OneLine(violation.fix(), 1000));
  }
  return line;
}

absl::Status ViolationsStatus(absl::StatusCode code,
                              const std::vector<v1::Violation>& violations) {
  EBB_CHECK(code != absl::StatusCode::kOk && !violations.empty());
  std::string message;
  v1::Violations payload;
  for (const v1::Violation& violation : violations) {
    absl::StrAppend(&message, message.empty() ? "" : "\n",
                    FormatViolation(violation));
    *payload.add_violations() = WithUtf8(violation);
  }
  absl::Status status(code, message);
  status.SetPayload(kViolationsTypeUrl,
                    absl::Cord(payload.SerializeAsString()));
  return status;
}

absl::Status FieldError(const std::string& field, const std::string& value,
                        const std::string& rule, const std::string& fix) {
  v1::Violation violation;
  violation.set_field(field);
  violation.set_value(value);
  violation.set_rule(rule);
  violation.set_fix(fix);
  return ViolationsStatus(absl::StatusCode::kInvalidArgument, {violation});
}

std::vector<v1::Violation> GetViolations(const absl::Status& status) {
  auto payload = status.GetPayload(kViolationsTypeUrl);
  v1::Violations violations;
  if (!payload.has_value() ||
      !violations.ParseFromString(std::string(*payload))) {
    return {};
  }
  return {violations.violations().begin(), violations.violations().end()};
}

}  // namespace ebb
