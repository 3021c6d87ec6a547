// Every mistake of a request as one status: text for people in the message,
// ebb.v1.Violations for programs in the payload.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/job_service.pb.h"

namespace ebb {

// Payload key under which a status carries serialized v1::Violations.
inline constexpr char kViolationsTypeUrl[] =
    "type.googleapis.com/ebb.v1.Violations";

// One line: `FILE:LINE: field.path: got VALUE: RULE; FIX`. Parts that are empty
// are left out (a raw message has no file); an empty value reads "nothing".
// Line breaks and control characters are escaped, long values are shortened.
std::string FormatViolation(const v1::Violation& violation);

// A status with one line per mistake in its message and all of them in its
// payload. REQUIRES: code is not OK and violations is not empty.
absl::Status ViolationsStatus(absl::StatusCode code,
                              const std::vector<v1::Violation>& violations);

// INVALID_ARGUMENT for one mistake in a raw message.
absl::Status FieldError(const std::string& field, const std::string& value,
                        const std::string& rule, const std::string& fix);

// The mistakes that a status carries; empty if it carries none.
std::vector<v1::Violation> GetViolations(const absl::Status& status);

// Text as it may stand in a one-line message: quotes, backslashes stay; control
// characters become \n, \t or \xNN, bytes that are no UTF-8 \xNN; more than
// max_bytes are cut with "...".
std::string OneLine(absl::string_view text, size_t max_bytes = 80);

}  // namespace ebb
