// The revision as the build looks it up, in checkouts made for it.
#include "proto/revision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

std::string Read(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class RevisionTest : public ::testing::Test {
 protected:
  RevisionTest() {
    std::string pattern = ::testing::TempDir() + "/revision_testXXXXXX";
    root_ = mkdtemp(pattern.data());
    // No settings of this machine.
    setenv("GIT_CONFIG_GLOBAL", "/dev/null", 1);
    setenv("GIT_CONFIG_NOSYSTEM", "1", 1);
    // A hook that runs tests would set it.
    unsetenv("GIT_DIR");
    unsetenv("GIT_INDEX_FILE");
  }
  ~RevisionTest() override { fs::remove_all(root_); }

  void Run(const std::string& command) {
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  void Git(const std::string& arguments) {
    Run(absl::StrCat("git -C ", root_.string(),
                     " -c user.name=n -c user.email=e ", arguments));
  }
  // Looks up the revision of that folder.
  void LookUp(const fs::path& source) {
    Run(absl::StrCat("cmake -DSOURCE=", source.string(),
                     " -DOUT=", out().string(), " -P ", EBB_SOURCE_DIR,
                     "/proto/revision.cmake"));
  }
  fs::path out() const { return root_ / "out.cc"; }
  void Commit() {
    std::ofstream(root_ / "a") << "one";
    Git("init -q");
    Git("add a");
    Git("commit -q -m first");
    Git("rev-parse HEAD > " + (root_ / "head").string());
    head_ = Read(root_ / "head");
    absl::StripTrailingAsciiWhitespace(&head_);
    ASSERT_EQ(head_.size(), 40u);
  }

  fs::path root_;
  std::string head_;
};

TEST_F(RevisionTest, IsTheCommitOfACheckout) {
  Commit();
  LookUp(root_);
  EXPECT_THAT(Read(out()), HasSubstr(absl::StrCat("\"", head_, "\"")));
  // A tag is not what names it.
  Git("tag v1");
  LookUp(root_);
  EXPECT_THAT(Read(out()), HasSubstr(absl::StrCat("\"", head_, "\"")));
}

TEST_F(RevisionTest, SaysThatFilesWereChanged) {
  Commit();
  std::ofstream(root_ / "a") << "two";
  LookUp(root_);
  EXPECT_THAT(Read(out()), HasSubstr(absl::StrCat("\"", head_, "-dirty\"")));
}

TEST_F(RevisionTest, IsUnknownOutsideACheckout) {
  LookUp(root_);
  EXPECT_THAT(Read(out()), HasSubstr("\"unknown\""));
  // Nor is it that of a checkout around it.
  Commit();
  fs::create_directory(root_ / "unpacked");
  LookUp(root_ / "unpacked");
  EXPECT_THAT(Read(out()), HasSubstr("\"unknown\""));
}

TEST_F(RevisionTest, WritesNothingWhereItIsStillTheSame) {
  Commit();
  LookUp(root_);
  const fs::file_time_type before =
      fs::last_write_time(out()) - std::chrono::hours(1);
  fs::last_write_time(out(), before);
  LookUp(root_);
  EXPECT_EQ(fs::last_write_time(out()), before);
  Git("commit -q --allow-empty -m second");
  LookUp(root_);
  EXPECT_NE(fs::last_write_time(out()), before);
  EXPECT_THAT(Read(out()), Not(HasSubstr(head_)));
}

TEST(Revision, IsOneOfThese) {
  EXPECT_THAT(kRevision, MatchesRegex("unknown|[0-9a-f]{40}(-dirty)?"));
}

}  // namespace
}  // namespace ebb
