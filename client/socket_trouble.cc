// See socket_trouble.h. Asks the system by connecting, which a coordinator
// takes for a client that leaves at once.
#include "client/socket_trouble.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace ebb {

std::string FindSocketTrouble(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return "the path is too long";
  std::memcpy(address.sun_path, path.data(), path.size());
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
    return "it is not a socket";
  }
  const int descriptor =
      socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return std::strerror(errno);
  const int error = connect(descriptor, reinterpret_cast<sockaddr*>(&address),
                            sizeof(address)) == 0
                        ? 0
                        : errno;
  close(descriptor);
  switch (error) {
    case 0:
    case EAGAIN:  // many wait: someone listens
      return "";
    case ENOENT:
      return "there is no such file";
    case ECONNREFUSED:
      return "the socket is there, but nobody listens: its coordinator has "
             "ended";
    case EACCES:
      return "this user may not use it: permission denied";
    default:
      return std::strerror(error);
  }
}

}  // namespace ebb
