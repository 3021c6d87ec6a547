// See exit_code.h.
#include "client/exit_code.h"

namespace ebb {

ExitCode ExitCodeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kOutOfRange:
      return kExitUsage;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kExitDenied;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return kExitPrecondition;
    case absl::StatusCode::kUnavailable:
      return kExitUnavailable;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitDeadline;
    case absl::StatusCode::kResourceExhausted:
      return kExitDoesNotFit;
    default:
      return kExitInternal;
  }
}

std::string StatusCodeName(absl::StatusCode code) {
  return absl::StatusCodeToString(code);
}

std::string ExitCodeHelp() {
  return R"(Exit codes of ebb:
    0  ok
    1  internal error, damaged data, cancelled call (INTERNAL, DATA_LOSS,
       CANCELLED, UNKNOWN)
    2  wrong usage or wrong spec, or not built yet (INVALID_ARGUMENT,
       OUT_OF_RANGE, UNIMPLEMENTED)
    3  no such job or file (NOT_FOUND)
    4  not allowed (UNAUTHENTICATED, PERMISSION_DENIED)
    5  right request, wrong state (FAILED_PRECONDITION, ALREADY_EXISTS,
       ABORTED); doctor: a check failed
    6  the coordinator cannot be reached (UNAVAILABLE)
    7  no answer in time (DEADLINE_EXCEEDED)
    8  detached: the job has not ended
    9  the job or graph does not fit its memory budget (RESOURCE_EXHAUSTED)
  100  the job failed
  103  the job was cancelled
watch, steps --follow and submit --wait end with the job's code: 0, 100 or 103.
)";
}

}  // namespace ebb
