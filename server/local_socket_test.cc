// Who gets in, and what the socket looks like to others.
#include "server/local_socket.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state_directory.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

class LocalSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/sockXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  int Connect(const std::string& path) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(
        connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }

  std::string directory_;
};

TEST_F(LocalSocketTest, HandsOverAllowedPeers) {
  const std::string path = directory_ + "/s";
  absl::Notification accepted;
  uid_t asked = 12345;
  auto socket = LocalSocket::Listen(
      path,
      [&](uid_t peer) {
        asked = peer;
        return true;
      },
      [&](int fd) {
        EXPECT_EQ(write(fd, "hello", 5), 5);
        close(fd);
        accepted.Notify();
      });
  ASSERT_TRUE(socket.ok()) << socket.status();
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const int fd = Connect(path);
  accepted.WaitForNotification();
  char text[6] = {};
  EXPECT_EQ(read(fd, text, 5), 5);
  EXPECT_STREQ(text, "hello");
  close(fd);
  EXPECT_EQ(asked, geteuid());
  socket->reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(LocalSocketTest, ClosesOnEveryoneElse) {
  const std::string path = directory_ + "/s";
  auto socket = LocalSocket::Listen(
      path, [](uid_t) { return false; },
      [](int) { ADD_FAILURE() << "let in"; });
  ASSERT_TRUE(socket.ok());
  const int fd = Connect(path);
  char byte;
  EXPECT_EQ(read(fd, &byte, 1), 0);
  close(fd);
}

TEST(LocalSocket, OnlyTheOwnUserAndRoot) {
  EXPECT_TRUE(PeerAllowed(1000, 1000));
  EXPECT_TRUE(PeerAllowed(0, 1000));
  EXPECT_FALSE(PeerAllowed(1001, 1000));
  EXPECT_FALSE(PeerAllowed(1000, 0));
}

TEST_F(LocalSocketTest, ALongPathSaysWhatToSet) {
  const auto socket = LocalSocket::Listen(
      directory_ + "/" + std::string(108, 'x'), [](uid_t) { return true; },
      [](int) {});
  EXPECT_EQ(socket.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(socket.status().message()), HasSubstr("EBB_STATE"));
}

TEST_F(LocalSocketTest, OneCoordinatorAStateDirectory) {
  const std::string path = directory_ + "/deep/state";
  auto first = StateDirectory::Open(path);
  ASSERT_TRUE(first.ok()) << first.status();
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  const auto second = StateDirectory::Open(path);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("another ebbd"));
  first->reset();
  EXPECT_TRUE(StateDirectory::Open(path).ok());
}

TEST_F(LocalSocketTest, ADirectoryOfOthersStaysAsItIs) {
  const std::string path = directory_ + "/shared";
  std::filesystem::create_directory(path);
  chmod(path.c_str(), 0755);
  std::filesystem::create_directory(path + "/documents");
  EXPECT_EQ(StateDirectory::Open(path).status().code(),
            absl::StatusCode::kFailedPrecondition);
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0755u);
  // An empty one is taken and closed.
  std::filesystem::remove(path + "/documents");
  EXPECT_TRUE(StateDirectory::Open(path).ok());
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST(StateDirectory, FollowsFlagThenEnvironment) {
  setenv("EBB_STATE", "/e/state", 1);
  EXPECT_EQ(StateDirectoryPath("/flag/").value(), "/flag");
  EXPECT_EQ(StateDirectoryPath("").value(), "/e/state");
  unsetenv("EBB_STATE");
  setenv("XDG_STATE_HOME", "/x", 1);
  EXPECT_EQ(StateDirectoryPath("").value(), "/x/ebb");
  setenv("XDG_STATE_HOME", "relative", 1);
  setenv("HOME", "/home/me", 1);
  EXPECT_EQ(StateDirectoryPath("").value(), "/home/me/.local/state/ebb");
}

}  // namespace
}  // namespace ebb
