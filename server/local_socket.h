// The coordinator's Unix socket: only its own user and root are let in, before
// a byte of theirs is read.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace ebb {

// sizeof(sockaddr_un::sun_path) less the final zero.
constexpr size_t kMaxSocketPathBytes = 107;

// Who may connect to a coordinator of user `own`.
bool PeerAllowed(uid_t peer, uid_t own);

class LocalSocket {
 public:
  // Takes a connected descriptor over, non-blocking and close-on-exec.
  using Accept = std::function<void(int fd)>;
  using Allow = std::function<bool(uid_t peer)>;

  // Listens, replacing a socket that is there: the caller holds the lock of the
  // state directory. `accept` is called from a thread of the socket; the rest
  // is refused by closing it.
  // Errors: INVALID_ARGUMENT for a path that is too long (says what to set);
  // INTERNAL with the system's reason.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Listen(
      const std::string& path, Allow allow, Accept accept);

  // Stops listening and removes the socket, unless another took its place;
  // connections stay.
  ~LocalSocket();
  LocalSocket(const LocalSocket&) = delete;
  LocalSocket& operator=(const LocalSocket&) = delete;

 private:
  LocalSocket() = default;
  void Run();

  std::string path_;
  dev_t device_ = 0;  // of the socket's file
  ino_t inode_ = 0;
  Allow allow_;
  Accept accept_;
  int listener_ = -1;
  int stop_ = -1;  // eventfd: readable when it is time to stop
  std::thread thread_;
};

}  // namespace ebb
