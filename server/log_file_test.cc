// Bounded reading of files of any content.
#include "server/log_file.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace ebb {
namespace {

class LogFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/logXXXXXX";
    const int fd = mkstemp(pattern.data());
    ASSERT_GE(fd, 0);
    close(fd);
    path_ = pattern;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void Write(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  std::string Tail(int lines, int64_t max_bytes = 1 << 20) {
    const auto offset = TailOffset(path_, lines, max_bytes);
    EXPECT_TRUE(offset.ok());
    return ReadLog(path_, *offset, 1 << 20).value();
  }

  std::string path_;
};

TEST_F(LogFileTest, ReadsPieces) {
  Write("0123456789");
  EXPECT_EQ(ReadLog(path_, 0, 4).value(), "0123");
  EXPECT_EQ(ReadLog(path_, 8, 4).value(), "89");
  EXPECT_EQ(ReadLog(path_, 10, 4).value(), "");
  EXPECT_EQ(ReadLog(path_, 1000, 4).value(), "");
  EXPECT_EQ(ReadLog(path_ + ".none", 0, 4).value(), "");
}

TEST_F(LogFileTest, FindsTheLastLines) {
  Write("one\ntwo\nthree\n");
  EXPECT_EQ(Tail(1), "three\n");
  EXPECT_EQ(Tail(2), "two\nthree\n");
  EXPECT_EQ(Tail(9), "one\ntwo\nthree\n");
  Write("one\ntwo");
  EXPECT_EQ(Tail(1), "two");
  Write("");
  EXPECT_EQ(Tail(3), "");
  Write("\n\n\n");
  EXPECT_EQ(Tail(1), "\n");
}

TEST_F(LogFileTest, LooksBackNoFurtherThanAsked) {
  Write(std::string(300000, 'x'));
  EXPECT_EQ(Tail(1, 1000).size(), 1000u);
  Write("first\n" + std::string(200000, 'y') + "\n");
  EXPECT_EQ(Tail(2).size(), 200007u) << "across blocks";
}

TEST_F(LogFileTest, DoesNotFollowLinks) {
  const std::string link = path_ + ".link";
  std::filesystem::create_symlink("/etc/passwd", link);
  EXPECT_FALSE(ReadLog(link, 0, 10).ok());
  std::filesystem::remove(link);
}

TEST(LogFile, ReplacesWhatIsNoUtf8) {
  EXPECT_EQ(ToUtf8("plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x99\x82"),
            "plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x99\x82");
  EXPECT_EQ(ToUtf8(std::string("a\0b", 3)), "a?b");
  EXPECT_EQ(ToUtf8("\xFF\xC0\xAF"), "???");
  EXPECT_EQ(ToUtf8("\xED\xA0\x80"), "???") << "a surrogate";
  EXPECT_EQ(ToUtf8("\xF4\x90\x80\x80"), "????") << "above U+10FFFF";
  EXPECT_EQ(ToUtf8("cut \xE2\x82"), "cut ??");
}

}  // namespace
}  // namespace ebb
