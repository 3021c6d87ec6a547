// Mistakes as one status, and names near to misspelt ones.
#include "proto/violations.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/name_suggestion.h"
#include "proto/utf8.h"

namespace ebb {
namespace {

v1::Violation MakeViolation() {
  v1::Violation violation;
  violation.set_file("spec.yaml");
  violation.set_line(3);
  violation.set_field("optimizer.lr");
  violation.set_value("-1");
  violation.set_rule("must be a number from 0 to 1000");
  violation.set_fix("write digits");
  return violation;
}

TEST(Violations, FormatInOneLine) {
  v1::Violation violation = MakeViolation();
  EXPECT_EQ(FormatViolation(violation),
            "spec.yaml:3: optimizer.lr: got -1: must be a number from 0 to "
            "1000; write digits");
  violation.clear_file();
  violation.clear_fix();
  violation.clear_value();
  EXPECT_EQ(FormatViolation(violation),
            "optimizer.lr: got nothing: must be a number from 0 to 1000");
  violation.set_file("--set optimizer.lr");
  violation.clear_line();
  violation.set_value(std::string(500, 'x') + "\n");
  EXPECT_EQ(FormatViolation(violation).find('\n'), std::string::npos);
  EXPECT_LT(FormatViolation(violation).size(), 250u);
  EXPECT_EQ(FormatViolation(violation).find("--set optimizer.lr: optimizer.lr"),
            0u);
}

TEST(Violations, TravelInAStatus) {
  v1::Violation second = MakeViolation();
  second.set_file("name that is no \xff UTF-8");
  const absl::Status status = ViolationsStatus(
      absl::StatusCode::kInvalidArgument, {MakeViolation(), second});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::vector<v1::Violation> violations = GetViolations(status);
  ASSERT_EQ(violations.size(), 2u);
  EXPECT_EQ(violations[0].SerializeAsString(),
            MakeViolation().SerializeAsString());
  EXPECT_EQ(violations[1].file(), "name that is no \\xff UTF-8");
  EXPECT_TRUE(GetViolations(absl::OkStatus()).empty());
  EXPECT_TRUE(GetViolations(absl::InternalError("x")).empty());
  absl::Status garbage = absl::InternalError("x");
  garbage.SetPayload(kViolationsTypeUrl, absl::Cord("\xff\xff garbage"));
  EXPECT_TRUE(GetViolations(garbage).empty());
}

TEST(Violations, OneLineKeepsReadableText) {
  EXPECT_EQ(OneLine("a\"b\\c"), "a\"b\\c");
  EXPECT_EQ(OneLine("a\nb\tc\rd\x01"), "a\\nb\\tc\\rd\\x01");
  EXPECT_EQ(OneLine("gr\xc3\xbcn \xff"), "gr\xc3\xbcn \\xff");
  EXPECT_EQ(OneLine("\xc2\x9b"), "\\xc2\\x9b");
  EXPECT_EQ(OneLine("abcdef", 4), "abcd...");
  // No character is cut in the middle.
  EXPECT_EQ(OneLine("abc\xc3\xbc", 4), "abc...");
}

TEST(Utf8, KnowsWhatIsWellFormed) {
  for (const char* good : {"a", "\xc3\xbc", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                           "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"}) {
    EXPECT_EQ(Utf8CharacterBytes(good), std::string(good).size());
  }
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80",
        "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xc3",
        "\xe2\x82", "\xf0\x9f\x98", "\xff"}) {
    EXPECT_EQ(Utf8CharacterBytes(bad), 0u);
    EXPECT_EQ(FindInvalidUtf8(std::string("ab") + bad), 2u);
  }
  EXPECT_EQ(FindInvalidUtf8("all good"), std::string::npos);
  EXPECT_EQ(FindControlCharacter("ab\n"), 2u);
}

TEST(NameSuggestion, CountsEdits) {
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("ab", "ba"), 1);
  EXPECT_EQ(EditDistance("same", "same"), 0);
}

TEST(NameSuggestion, FindsTheNearest) {
  const std::vector<std::string> names = {"none", "selective", "cheap", "full"};
  EXPECT_EQ(NearestName("fulll", names), "full");
  EXPECT_EQ(NearestName("FULL", names), "full");
  EXPECT_EQ(NearestName("selektive", names), "selective");
  EXPECT_EQ(NearestName("xyz", names), "");
  EXPECT_EQ(NearestName("", names), "");
  EXPECT_EQ(NearestName(std::string(100000, 'f'), names), "");
}

}  // namespace
}  // namespace ebb
