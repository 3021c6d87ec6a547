// The gRPC edge: JobService and WorkerService, each handler one call of the
// coordinator, or of graph_requests for what is no job. It has no port:
// connections are handed to it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "server/coordinator.h"
#include "server/exporter.h"

namespace ebb {

// What GetServer says.
struct ServerInfo {
  std::string version;
  int64_t pid = 0;
  std::string metrics_address;
  std::string state_directory;
  absl::Time start_time;
  std::function<std::vector<Backend>()> backends;
};

// Thread-safe. Calls run on gRPC's threads, at most kMaxThreads; streams that
// follow something are bounded below that, so that short calls always get
// through.
class Services {
 public:
  // Coordinator and exporter outlive it.
  static absl::StatusOr<std::unique_ptr<Services>> Start(
      Coordinator* coordinator, Exporter* exporter, ServerInfo info);
  // As Shutdown(absl::ZeroDuration()).
  ~Services();

  // Serves a connected, non-blocking descriptor; owns it.
  void AddConnection(int fd);

  // Health says NOT_SERVING, no new calls; those that run have `grace` to end.
  void Shutdown(absl::Duration grace);

 private:
  struct State;
  Services();
  std::unique_ptr<State> state_;
};

}  // namespace ebb
