// Accepts, asks the kernel who it is, and hands over.
#include "server/local_socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "monitoring/log.h"

namespace ebb {
namespace {

// Pause after a failed accept (no descriptors left), in milliseconds.
constexpr int kPauseMillis = 100;

}  // namespace

bool PeerAllowed(uid_t peer, uid_t own) { return peer == own || peer == 0; }

absl::StatusOr<std::unique_ptr<LocalSocket>> LocalSocket::Listen(
    const std::string& path, Allow allow, Accept accept) {
  if (path.size() > kMaxSocketPathBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket's path has ", path.size(), " bytes, at most ",
                     kMaxSocketPathBytes, " are possible: ", path,
                     ": set EBB_STATE (or --state) to a shorter directory"));
  }
  std::unique_ptr<LocalSocket> local(new LocalSocket);
  local->path_ = path;
  local->allow_ = std::move(allow);
  local->accept_ = std::move(accept);
  const auto failed = [&](const char* what) {
    return absl::InternalError(
        absl::StrCat(what, " ", path, ": ", strerror(errno)));
  };
  local->listener_ =
      socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (local->listener_ < 0) return failed("cannot make a socket for");
  local->stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (local->stop_ < 0) return failed("cannot make an eventfd for");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  unlink(path.c_str());
  if (bind(local->listener_, reinterpret_cast<const sockaddr*>(&address),
           sizeof(address)) != 0) {
    return failed("cannot bind");
  }
  struct stat bound;
  if (stat(path.c_str(), &bound) != 0) return failed("cannot look at");
  local->device_ = bound.st_dev;
  local->inode_ = bound.st_ino;
  // The directory is 0700; this is the second bolt.
  if (chmod(path.c_str(), 0600) != 0) return failed("cannot protect");
  constexpr int kBacklog = 128;
  if (listen(local->listener_, kBacklog) != 0)
    return failed("cannot listen on");
  local->thread_ = std::thread([socket = local.get()] { socket->Run(); });
  return local;
}

LocalSocket::~LocalSocket() {
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
    struct stat found;
    if (stat(path_.c_str(), &found) == 0 && found.st_dev == device_ &&
        found.st_ino == inode_) {
      unlink(path_.c_str());
    }
  }
  if (listener_ >= 0) close(listener_);
  if (stop_ >= 0) close(stop_);
}

void LocalSocket::Run() {
  while (true) {
    pollfd polled[] = {{listener_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (poll(polled, 2, -1) < 0 && errno != EINTR) return;
    if (polled[1].revents != 0) return;
    const int fd =
        accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        EBB_LOG(ERROR) << "cannot accept: " << strerror(errno);
        pollfd stop = {stop_, POLLIN, 0};
        poll(&stop, 1, kPauseMillis);
      }
      continue;
    }
    ucred peer = {};
    socklen_t size = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
        !allow_(peer.uid)) {
      EBB_LOG(WARNING) << "refused a connection of user " << peer.uid
                       << ", process " << peer.pid;
      close(fd);
      continue;
    }
    accept_(fd);
  }
}

}  // namespace ebb
