// JSON that came from elsewhere is bounded and says one thing.
#include "worker/checkpoint/json_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ebb {
namespace {

using ::testing::HasSubstr;

TEST(JsonFile, TakesOneValue) {
  const auto value = ParseJson("{\"a\": [1, {\"a\": 2}], \"b\": {\"a\": 3}} ");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ((*value)["a"][1]["a"], 2);
}

TEST(JsonFile, RefusesWhatIsNotJson) {
  for (const std::string& text :
       {std::string(""), std::string("{"), std::string("{} {}"),
        std::string("{\"a\": 1e999}"), std::string("{\"\xff\": 1}"),
        std::string("{}\0", 3)}) {
    const absl::Status status = ParseJson(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("not JSON"));
  }
}

TEST(JsonFile, RefusesTwoMembersOfOneName) {
  for (const char* text :
       {"{\"a\": 1, \"b\": 2, \"a\": 1}", "[{\"x\": {\"a\": 1, \"a\": 2}}]"}) {
    EXPECT_THAT(std::string(ParseJson(text).status().message()),
                HasSubstr("two members named a"));
  }
}

TEST(JsonFile, RefusesDeepNesting) {
  EXPECT_TRUE(ParseJson(std::string(30, '[') + std::string(30, ']')).ok());
  for (const char* opening : {"[", "{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 100000; ++i) deep += opening;
    EXPECT_EQ(ParseJson(deep).status().code(), absl::StatusCode::kDataLoss);
  }
  const std::string closed = std::string(40, '[') + std::string(40, ']');
  EXPECT_THAT(std::string(ParseJson(closed).status().message()),
              HasSubstr("deeper than 32"));
}

}  // namespace
}  // namespace ebb
