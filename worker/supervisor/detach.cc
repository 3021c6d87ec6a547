// The steps of a daemon, but for the fork: the pid stays.
#include "worker/supervisor/detach.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ebb {

absl::Status DetachProcess(const std::string& log_path) {
  int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (log < 0) {
    return absl::InternalError(absl::StrCat(
        "cannot open log: ", std::strerror(errno), ": ", log_path));
  }
  int null = open("/dev/null", O_RDWR);
  if (null < 0) {
    absl::Status status = absl::InternalError(
        absl::StrCat("cannot open: ", std::strerror(errno), ": /dev/null"));
    close(log);
    return status;
  }
  // Fails for the leader of a process group: then the launcher has made a
  // session, or it is a shell, whose SIGHUP is ignored below.
  setsid();
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  close_range(STDERR_FILENO + 1, ~0U, 0);
  if (chdir("/") != 0) {
    return absl::InternalError("cannot change to /");
  }
  return absl::OkStatus();
}

}  // namespace ebb
