// See output.h.
#include "client/output.h"

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/json_output.h"
#include "proto/violations.h"

namespace ebb {

absl::StatusOr<OutputFormat> ParseOutputFormat(absl::string_view text) {
  if (text == "table") return OutputFormat::kTable;
  if (text == "json") return OutputFormat::kJson;
  if (text == "jsonl") return OutputFormat::kJsonl;
  return absl::InvalidArgumentError(absl::StrCat(
      "--output: got ", OneLine(text), ": must be table, json or jsonl"));
}

nlohmann::ordered_json ToJson(const google::protobuf::Message& message) {
  return nlohmann::ordered_json::parse(MessageToJson(message));
}

std::string WriteJson(const nlohmann::ordered_json& json, OutputFormat format) {
  return json.dump(format == OutputFormat::kJson ? 2 : -1, ' ',
                   /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

void PrintError(const absl::Status& status, OutputFormat format,
                std::ostream& err) {
  const std::vector<v1::Violation> violations = GetViolations(status);
  if (format == OutputFormat::kTable) {
    if (violations.empty()) {
      err << "ebb: " << status.message() << "\n";
    }
    for (const v1::Violation& violation : violations) {
      err << FormatViolation(violation) << "\n";
    }
    return;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const v1::Violation& violation : violations) {
    list.push_back({{"field", violation.field()},
                    {"file", violation.file()},
                    {"line", violation.line()},
                    {"value", violation.value()},
                    {"rule", violation.rule()},
                    {"fix", violation.fix()}});
  }
  const nlohmann::ordered_json error = {
      {"error",
       {{"code", StatusCodeName(status.code())},
        {"message", std::string(status.message())},
        {"violations", list}}}};
  err << WriteJson(error, format);
}

}  // namespace ebb
