// Real sockets and what is none.
#include "client/socket_trouble.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ebb {
namespace {

using testing::HasSubstr;

TEST(SocketTrouble, NamesWhatIsWrong) {
  std::string directory = testing::TempDir() + "socket_trouble.XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string path = directory + "/socket";
  EXPECT_EQ(FindSocketTrouble(path), "there is no such file");
  EXPECT_EQ(FindSocketTrouble(std::string(200, 'x')), "the path is too long");
  std::ofstream(directory + "/file") << "text";
  EXPECT_EQ(FindSocketTrouble(directory + "/file"), "it is not a socket");
  EXPECT_EQ(FindSocketTrouble(directory), "it is not a socket");

  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(
      bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
      0);
  ASSERT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(FindSocketTrouble(path), "");
  close(listener);
  EXPECT_THAT(FindSocketTrouble(path), HasSubstr("nobody listens"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace ebb
