// See connection.h.
#include "client/connection.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/local_coordinator.h"
#include "client/version.h"
#include "kernels/status.h"
#include "proto/job_service.pb.h"

namespace ebb {
namespace {

constexpr char kUnixScheme[] = "unix:";
// A coordinator answers at once; a busy machine gets some time.
constexpr absl::Duration kProbeDeadline = absl::Seconds(3);

std::string SocketTarget(const std::string& socket) {
  return absl::StrCat(kUnixScheme, socket);
}

}  // namespace

absl::StatusOr<std::string> ServerTarget(const Environment& environment,
                                         const std::string& server) {
  absl::string_view path = server;
  if (!absl::ConsumePrefix(&path, kUnixScheme)) {
    return absl::UnimplementedError(absl::StrCat(
        "a server at HOST:PORT needs a token, which is not built yet: name a "
        "socket on this machine as unix:PATH, or none for the local "
        "coordinator: got ",
        server));
  }
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "the server's address lacks a path: must be unix:PATH");
  }
  const std::string socket = environment.AbsolutePath(path);
  if (socket.size() > kMaxSocketPath) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the path of a Unix socket has at most ", kMaxSocketPath,
        " bytes, this one ", socket.size(),
        ": set EBB_STATE of the coordinator to a shorter directory: ", socket));
  }
  return SocketTarget(socket);
}

std::string NamedServer(const Environment& environment,
                        const std::string& server_option) {
  return server_option.empty() ? environment.Variable("EBB_SERVER")
                               : server_option;
}

absl::StatusOr<int64_t> ProbeSocket(const std::string& socket) {
  JobClient client([&] { return SocketTarget(socket); });
  EBB_ASSIGN_OR_RETURN(const v1::Server server,
                       client.ProbeServer(kProbeDeadline));
  return server.pid();
}

absl::StatusOr<std::unique_ptr<JobClient>> ConnectToCoordinator(
    const Environment& environment, const std::string& server_option,
    const CallTiming& timing) {
  const std::string named = NamedServer(environment, server_option);
  JobClient::Resolver resolve;
  if (!named.empty()) {
    EBB_ASSIGN_OR_RETURN(const std::string target,
                         ServerTarget(environment, named));
    resolve = [target] { return target; };
  } else {
    EBB_ASSIGN_OR_RETURN(const std::string state_directory,
                         StateDirectory(environment));
    EBB_RETURN_IF_ERROR(
        EnsureCoordinator(environment, state_directory, ProbeSocket).status());
    resolve = [state_directory]() -> absl::StatusOr<std::string> {
      EBB_ASSIGN_OR_RETURN(const auto file,
                           ReadCoordinatorFile(state_directory));
      if (!file.has_value()) {
        return absl::UnavailableError("no coordinator runs");
      }
      return SocketTarget(file->socket);
    };
  }
  auto client = std::make_unique<JobClient>(std::move(resolve), timing);
  const absl::StatusOr<v1::Server> server = client->GetServer();
  if (absl::IsUnavailable(server.status()) && !named.empty()) {
    return absl::UnavailableError(absl::StrCat(
        server.status().message(),
        "; name the socket of a coordinator that runs (ebbd.json in its state "
        "directory has it), or neither --server nor $EBB_SERVER for the local "
        "one, which is started if none runs"));
  }
  if (!server.ok()) {
    return Annotate(server.status(),
                    absl::StrCat("coordinator at ",
                                 named.empty() ? "the local socket" : named));
  }
  if (server->version() != kVersion) {
    *environment.err << "ebb: warning: the coordinator runs version "
                     << server->version() << ", this is ebb " << kVersion
                     << ": run `ebb stop`, then this command again (jobs train "
                        "on meanwhile)\n";
  }
  return client;
}

}  // namespace ebb
