// JSON and errors, in the shapes that scripts rely on.
#pragma once

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/environment.h"
#include "nlohmann/json_fwd.hpp"

namespace google::protobuf {
class Message;
}

namespace ebb {

// "table", "json" or "jsonl".
absl::StatusOr<OutputFormat> ParseOutputFormat(absl::string_view text);

// The message (a Job in its own shape) as JSON that more can be added to.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// json: indented; jsonl: one line. Text that is no UTF-8 is replaced.
std::string WriteJson(const nlohmann::ordered_json& json, OutputFormat format);

// table: one line a mistake; json and jsonl:
// {"error": {"code", "message", "violations"}}.
void PrintError(const absl::Status& status, OutputFormat format,
                std::ostream& err);

}  // namespace ebb
