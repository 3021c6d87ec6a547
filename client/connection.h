// From "which server" to a client that is connected to it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/environment.h"
#include "client/job_client.h"

namespace ebb {

// Checks and completes the address of a named server: "unix:PATH".
// Errors: INVALID_ARGUMENT; UNIMPLEMENTED for HOST:PORT.
absl::StatusOr<std::string> ServerTarget(const Environment& environment,
                                         const std::string& server);

// --server, else $EBB_SERVER; empty: the local coordinator.
std::string NamedServer(const Environment& environment,
                        const std::string& server_option);

// Connects to the named server, or to the local coordinator, which is started
// if none runs. Says on err if the coordinator is of another version.
absl::StatusOr<std::unique_ptr<JobClient>> ConnectToCoordinator(
    const Environment& environment, const std::string& server_option,
    const CallTiming& timing);

// Asks the coordinator at a socket's path whether it serves, once; its process
// id.
absl::StatusOr<int64_t> ProbeSocket(const std::string& socket);

}  // namespace ebb
