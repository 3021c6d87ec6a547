// Errors as lines and as JSON.
#include "client/output.h"

#include <algorithm>
#include <sstream>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/job_service.pb.h"
#include "proto/violations.h"

namespace ebb {
namespace {

v1::Violation TwoHeads() {
  v1::Violation violation;
  violation.set_field("model.heads");
  violation.set_file("spec.yaml");
  violation.set_line(4);
  violation.set_value("3");
  violation.set_rule("must divide hidden");
  violation.set_fix("use 4");
  return violation;
}

absl::Status Refused() {
  v1::Violation steps;
  steps.set_field("steps");
  steps.set_value("0");
  steps.set_rule("must be at least 1");
  steps.set_fix("use 200");
  return ViolationsStatus(absl::StatusCode::kInvalidArgument,
                          {TwoHeads(), steps});
}

std::string Printed(const absl::Status& status, OutputFormat format) {
  std::ostringstream err;
  PrintError(status, format, err);
  return err.str();
}

TEST(Output, ViolationsAreOneLineEach) {
  EXPECT_EQ(Printed(Refused(), OutputFormat::kTable),
            "spec.yaml:4: model.heads: got 3: must divide hidden; use 4\n"
            "steps: got 0: must be at least 1; use 200\n");
}

TEST(Output, OtherErrorsSayWhoSpeaks) {
  EXPECT_EQ(
      Printed(absl::NotFoundError("no such job: a"), OutputFormat::kTable),
      "ebb: no such job: a\n");
}

TEST(Output, JsonErrorsHaveCodeMessageAndViolations) {
  const std::string text = Printed(Refused(), OutputFormat::kJsonl);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_TRUE(json["error"]["message"].is_string());
  ASSERT_EQ(json["error"]["violations"].size(), 2u);
  EXPECT_EQ(json["error"]["violations"][0],
            nlohmann::json::parse(R"({"field": "model.heads",
                "file": "spec.yaml", "line": 4, "value": "3",
                "rule": "must divide hidden", "fix": "use 4"})"));
  EXPECT_EQ(Printed(absl::UnavailableError("gone"), OutputFormat::kJsonl),
            "{\"error\":{\"code\":\"UNAVAILABLE\",\"message\":\"gone\","
            "\"violations\":[]}}\n");
}

TEST(Output, BrokenTextStaysJson) {
  const nlohmann::ordered_json json = {{"text", "a\xff"}};
  EXPECT_EQ(WriteJson(json, OutputFormat::kJsonl),
            "{\"text\":\"a\xef\xbf\xbd\"}\n");
}

TEST(Output, FormatsByName) {
  EXPECT_EQ(ParseOutputFormat("jsonl").value(), OutputFormat::kJsonl);
  EXPECT_TRUE(absl::IsInvalidArgument(ParseOutputFormat("yaml").status()));
}

}  // namespace
}  // namespace ebb
