// The coordinator's directory: closed to others, and locked by the one
// coordinator that uses it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ebb {

// From --state, $EBB_STATE or the XDG state directory, made absolute.
// Errors: INVALID_ARGUMENT if none of them says anything.
absl::StatusOr<std::string> StateDirectoryPath(const std::string& flag);

// Held until it goes away or the process ends; programs that this one starts do
// not inherit it.
class StateDirectory {
 public:
  // Makes the directory (0700) where it is missing and takes its lock.
  // Errors: FAILED_PRECONDITION if another coordinator has it, if it belongs to
  // another user, or if it is open to others and holds foreign files;
  // INTERNAL with the system's reason.
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Open(
      const std::string& path);
  ~StateDirectory();

  const std::string& path() const { return path_; }

  // False once the directory was removed or replaced: nobody finds this
  // coordinator there any more, and another may have started.
  bool IsPresent() const;

 private:
  StateDirectory() = default;
  std::string path_;
  int lock_ = -1;
};

}  // namespace ebb
