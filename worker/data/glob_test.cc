// Wildcards in one part of a path, and their expansion to files.
#include "worker/data/glob.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/data/testing/token_file_writer.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Glob, MatchesOnePart) {
  EXPECT_TRUE(MatchesWildcards("*", "a"));
  EXPECT_TRUE(MatchesWildcards("*", ""));
  EXPECT_TRUE(MatchesWildcards("part-*.bin", "part-0.bin"));
  EXPECT_TRUE(MatchesWildcards("*a*b", "xaxabxb"));
  EXPECT_FALSE(MatchesWildcards("*a*b", "xaxabxc"));
  EXPECT_TRUE(MatchesWildcards("?b", "ab"));
  EXPECT_FALSE(MatchesWildcards("?b", "b"));
  EXPECT_FALSE(MatchesWildcards("ab", "abc"));
  EXPECT_FALSE(MatchesWildcards("abc", "ab"));
}

TEST(Glob, MatchesSets) {
  EXPECT_TRUE(MatchesWildcards("[a-c]x", "bx"));
  EXPECT_FALSE(MatchesWildcards("[a-c]x", "dx"));
  EXPECT_TRUE(MatchesWildcards("[!a-c]x", "dx"));
  EXPECT_FALSE(MatchesWildcards("[!a-c]x", "ax"));
  EXPECT_TRUE(MatchesWildcards("[]a]", "]"));
  EXPECT_TRUE(MatchesWildcards("[a-]", "-"));
  EXPECT_TRUE(MatchesWildcards("[\x80-\xff]", "\xc3"));
  EXPECT_TRUE(MatchesWildcards("[ab", "[ab"));
  EXPECT_TRUE(MatchesWildcards("x[", "x["));
}

TEST(Glob, TakesEscapedCharactersAsTheyAre) {
  EXPECT_TRUE(MatchesWildcards("\\*", "*"));
  EXPECT_FALSE(MatchesWildcards("\\*", "a"));
  EXPECT_TRUE(MatchesWildcards("a\\", "a\\"));
}

TEST(Glob, LeavesHiddenNamesAlone) {
  EXPECT_FALSE(MatchesWildcards("*", ".hidden"));
  EXPECT_FALSE(MatchesWildcards("?hidden", ".hidden"));
  EXPECT_TRUE(MatchesWildcards(".*", ".hidden"));
}

TEST(Glob, ManyStarsTakeNoLongerThanTheirProduct) {
  std::string pattern;
  for (int i = 0; i < 1000; ++i) pattern += "*a";
  pattern += "*b";
  EXPECT_FALSE(MatchesWildcards(pattern, std::string(2000, 'a')));
}

TEST(Glob, SortsMatchesByByte) {
  testing::TemporaryDirectory directory;
  for (const char* name : {"b.bin", "a.bin", "B.bin", "c.txt", "a-10.bin"}) {
    testing::WriteFile(directory / name, "x");
  }
  EXPECT_THAT(*ExpandGlob(directory / "*.bin"),
              ElementsAre(directory / "B.bin", directory / "a-10.bin",
                          directory / "a.bin", directory / "b.bin"));
}

TEST(Glob, MatchesDirectoriesOnTheWay) {
  testing::TemporaryDirectory directory;
  for (const char* name : {"s1", "s2", "t1"}) {
    std::filesystem::create_directory(directory / name);
  }
  testing::WriteFile(directory / "s1/x", "x");
  testing::WriteFile(directory / "s2/y", "x");
  testing::WriteFile(directory / "t1/x", "x");
  testing::WriteFile(directory / "s3", "a file, no directory");
  EXPECT_THAT(*ExpandGlob(directory / "s*/x"), ElementsAre(directory / "s1/x"));
  EXPECT_THAT(
      *ExpandGlob(directory / "*/?"),
      ElementsAre(directory / "s1/x", directory / "s2/y", directory / "t1/x"));
}

TEST(Glob, TakesAnExistingFileBeforeAPattern) {
  testing::TemporaryDirectory directory;
  testing::WriteFile(directory / "[a].txt", "x");
  testing::WriteFile(directory / "a.txt", "x");
  EXPECT_THAT(*ExpandGlob(directory / "[a].txt"),
              ElementsAre(directory / "[a].txt"));
}

TEST(Glob, FindsNothing) {
  testing::TemporaryDirectory directory;
  EXPECT_THAT(*ExpandGlob(directory / "*.bin"), IsEmpty());
  EXPECT_THAT(*ExpandGlob(directory / "none"), IsEmpty());
  EXPECT_THAT(*ExpandGlob(directory / "none/*/x"), IsEmpty());
}

TEST(Glob, RefusesPathsThatCannotBe) {
  EXPECT_THAT(std::string(ExpandGlob("").status().message()),
              HasSubstr("empty path"));
  EXPECT_THAT(
      std::string(ExpandGlob(std::string("/a\0b", 4)).status().message()),
      HasSubstr("NUL"));
  EXPECT_EQ(ExpandGlob(std::string(1 << 20, '*')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ebb
