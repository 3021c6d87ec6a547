// absl::Status to and from gRPC's status: code, message and violations. The
// only file that does this.
#pragma once

#include "absl/status/status.h"

namespace grpc {
class Status;
}

namespace ebb {

// Violations travel in the status details as a message with the fields of
// google.rpc.Status, so that any gRPC client can take them out. gRPC refuses
// trailers above 8 KiB: what is longer is cut, and the cut is said.
grpc::Status ToGrpcStatus(const absl::Status& status);

// A status with violations gets the full message that ViolationsStatus makes.
// UNKNOWN without details (an error of the transport) becomes UNAVAILABLE, so
// that callers retry.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace ebb
