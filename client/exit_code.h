// What `ebb` ends with. Scripts act on these numbers: they never change
// meaning, and `ebb help exit-codes` prints them. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace ebb {

enum ExitCode : int {
  kExitOk = 0,
  kExitInternal = 1,
  kExitUsage = 2,
  kExitNotFound = 3,
  kExitDenied = 4,
  kExitPrecondition = 5,
  kExitUnavailable = 6,
  kExitDeadline = 7,
  kExitDetached = 8,
  kExitDoesNotFit = 9,
  kExitJobFailed = 100,
  kExitJobCancelled = 103,
};

ExitCode ExitCodeOf(absl::StatusCode code);

// "INVALID_ARGUMENT", ...: the code's name in JSON errors.
std::string StatusCodeName(absl::StatusCode code);

// The text of `ebb help exit-codes`.
std::string ExitCodeHelp();

}  // namespace ebb
