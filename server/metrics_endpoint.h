// Serves /metrics over HTTP, on loopback alone.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace ebb {

class MetricsEndpoint {
 public:
  // `setting`: $EBB_METRICS_ADDRESS, nothing if it is not set. HOST:PORT with a
  // loopback address (port 0: any), or "off". Not set: 127.0.0.1:9464, or a
  // free port if that is busy. Null for "off".
  // Errors: INVALID_ARGUMENT for text that is no address; FAILED_PRECONDITION
  // for an address beyond loopback; UNAVAILABLE if the named one is busy.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Open(
      std::optional<std::string> setting,
      std::shared_ptr<prometheus::Collectable> collectable);
  ~MetricsEndpoint();

  // HOST:PORT as bound.
  const std::string& address() const { return address_; }

 private:
  MetricsEndpoint();

  // The exposer has only a weak hold on it.
  std::shared_ptr<prometheus::Collectable> collectable_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string address_;
};

}  // namespace ebb
