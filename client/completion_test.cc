// What is offered where on a line.
#include "client/completion.h"

#include <string>
#include <vector>

#include "client/command_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ebb {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

struct Result {
  std::vector<std::string> words;
  bool files = false;
  int num_asked = 0;  // for jobs
};

Result CompleteWords(const std::vector<std::string>& words) {
  Result result;
  const Completion completion =
      CompleteLine(DescribeProgram(), words, [&]() -> std::vector<Candidate> {
        ++result.num_asked;
        return {{"a1b2c3d4", "running"}, {"b1b2c3d4", "queued"}};
      });
  for (const Candidate& candidate : completion.candidates) {
    result.words.push_back(candidate.word);
  }
  result.files = completion.files;
  return result;
}

TEST(Completion, Commands) {
  EXPECT_THAT(CompleteWords({"su"}).words, ElementsAre("submit"));
  EXPECT_THAT(CompleteWords({"--output", "json", "wa"}).words,
              ElementsAre("watch"));
  EXPECT_EQ(CompleteWords({""}).words.size(),
            DescribeProgram().commands.size());
  EXPECT_EQ(CompleteWords({}).words.size(), DescribeProgram().commands.size());
  EXPECT_THAT(CompleteWords({"nonesuch", ""}).words, IsEmpty());
}

TEST(Completion, OptionsOfTheCommandAndOfAll) {
  EXPECT_THAT(CompleteWords({"logs", "--"}).words,
              ElementsAre("--help", "--rank", "--follow", "--tail", "--output",
                          "--server"));
  EXPECT_THAT(CompleteWords({"logs", "a1b2c3d4", "--fo"}).words,
              ElementsAre("--follow"));
  EXPECT_THAT(CompleteWords({"--ou"}).words, ElementsAre("--output"));
}

TEST(Completion, ValuesOfOptions) {
  EXPECT_THAT(CompleteWords({"list", "--output", ""}).words,
              ElementsAre("table", "json", "jsonl"));
  EXPECT_THAT(CompleteWords({"list", "--state", "c"}).words,
              ElementsAre("cancelling", "cancelled"));
  EXPECT_THAT(CompleteWords({"plan", "--accounting", ""}).words,
              ElementsAre("paper"));
  EXPECT_THAT(CompleteWords({"logs", "--rank", ""}).words, IsEmpty());
  EXPECT_THAT(CompleteWords({"completion", ""}).words,
              ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(CompleteWords({"help", "exi"}).words, ElementsAre("exit-codes"));
}

TEST(Completion, FieldsOfSpecsAndTheirChoices) {
  EXPECT_THAT(CompleteWords({"submit", "a.yaml", "--set", "memory.p"}).words,
              ElementsAre("memory.policy="));
  EXPECT_THAT(CompleteWords({"submit", "--set", "memory.policy=s"}).words,
              ElementsAre("memory.policy=selective", "memory.policy=sqrt"));
  EXPECT_THAT(CompleteWords({"plan", "--set", "model.bias="}).words,
              ElementsAre("model.bias=true", "model.bias=false"));
  EXPECT_TRUE(CompleteWords({"plan", "--set", "data.train="}).files);
  EXPECT_FALSE(CompleteWords({"plan", "--set", "steps="}).files);
}

TEST(Completion, PoliciesAndTheFieldsThatASwitchMaySet) {
  EXPECT_THAT(CompleteWords({"policy", "a1b2c3d4", "s"}).words,
              ElementsAre("selective", "sqrt"));
  EXPECT_THAT(CompleteWords({"policy", "--set", "m"}).words,
              testing::Each(testing::StartsWith("memory.")));
  EXPECT_THAT(CompleteWords({"policy", "--set", "o"}).words, IsEmpty());
  EXPECT_THAT(CompleteWords({"policy", ""}).words,
              ElementsAre("a1b2c3d4", "b1b2c3d4"));
}

TEST(Completion, JobsAndFilesWhereTheyBelong) {
  Result result = CompleteWords({"get", ""});
  EXPECT_THAT(result.words, ElementsAre("a1b2c3d4", "b1b2c3d4"));
  EXPECT_FALSE(result.files);
  EXPECT_THAT(CompleteWords({"cancel", "--now", "b"}).words,
              ElementsAre("b1b2c3d4"));
  // A second job only where there may be one.
  EXPECT_THAT(CompleteWords({"get", "a1b2c3d4", ""}).words, IsEmpty());
  EXPECT_THAT(CompleteWords({"compare", "a1b2c3d4", ""}).words,
              ElementsAre("a1b2c3d4", "b1b2c3d4"));
  result = CompleteWords({"submit", ""});
  EXPECT_TRUE(result.files);
  EXPECT_EQ(result.num_asked, 0);
  EXPECT_EQ(CompleteWords({"logs", "--"}).num_asked, 0);
}

TEST(Completion, PrintsALineACandidate) {
  EXPECT_EQ(PrintCompletion({{{"get", "Shows one job"}, {"x=", ""}}, true}),
            "get\tShows one job\nx=\t\n:files\n");
}

TEST(Completion, ScriptsForThreeShells) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    EXPECT_THAT(CompletionScript(shell),
                testing::HasSubstr("completion candidates"));
  }
  EXPECT_EQ(CompletionScript("tcsh"), "");
}

}  // namespace
}  // namespace ebb
