// prometheus-cpp's exposer, which throws.
#include "server/metrics_endpoint.h"

#include <arpa/inet.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>

#include <exception>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "monitoring/log.h"

namespace ebb {
namespace {

constexpr char kDefaultHost[] = "127.0.0.1";
constexpr int kDefaultPort = 9464;

struct Address {
  std::string host;  // numeric
  int port = 0;

  std::string Text() const {
    return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                        : absl::StrCat(host, ":", port);
  }
};

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  const auto wrong = [&](absl::string_view rule) {
    return absl::InvalidArgumentError(
        absl::StrCat("EBB_METRICS_ADDRESS: got '", text, "': ", rule,
                     "; use 127.0.0.1:9464, 127.0.0.1:0 or off"));
  };
  const size_t colon = text.rfind(':');
  Address address;
  if (colon == absl::string_view::npos ||
      !absl::SimpleAtoi(text.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return wrong("must be HOST:PORT");
  }
  absl::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  address.host = host == "localhost" ? kDefaultHost : std::string(host);
  in_addr v4;
  in6_addr v6;
  const bool is_v4 = inet_pton(AF_INET, address.host.c_str(), &v4) == 1;
  const bool is_v6 = inet_pton(AF_INET6, address.host.c_str(), &v6) == 1;
  if (!is_v4 && !is_v6) return wrong("must be a numeric address or localhost");
  const bool loopback =
      is_v4 ? (ntohl(v4.s_addr) >> 24) == 127 : IN6_IS_ADDR_LOOPBACK(&v6);
  if (!loopback) {
    return absl::FailedPreconditionError(absl::StrCat(
        "EBB_METRICS_ADDRESS: got '", text,
        "': an address beyond loopback needs a token and TLS, which are not "
        "built; use 127.0.0.1:",
        address.port));
  }
  return address;
}

// Null: the address is busy.
std::unique_ptr<prometheus::Exposer> TryBind(const Address& address,
                                             std::string* why) {
  // Enough threads that readers that never read do not keep others waiting;
  // they lose their connection after the timeout.
  const std::vector<std::string> options = {
      "listening_ports",    address.Text(), "num_threads",       "16",
      "request_timeout_ms", "5000",         "enable_keep_alive", "no"};
  try {
    return std::make_unique<prometheus::Exposer>(options);
  } catch (const std::exception& error) {
    *why = error.what();
    return nullptr;
  }
}

}  // namespace

MetricsEndpoint::MetricsEndpoint() = default;
MetricsEndpoint::~MetricsEndpoint() = default;

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Open(
    std::optional<std::string> setting,
    std::shared_ptr<prometheus::Collectable> collectable) {
  if (setting && setting->empty()) setting.reset();
  if (setting == "off") return std::unique_ptr<MetricsEndpoint>();
  Address address = {kDefaultHost, kDefaultPort};
  if (setting) {
    EBB_ASSIGN_OR_RETURN(address, ParseAddress(*setting));
  }
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint);
  std::string why;
  endpoint->exposer_ = TryBind(address, &why);
  if (endpoint->exposer_ == nullptr && !setting) {
    EBB_LOG(WARNING) << address.Text()
                     << " is busy: metrics take a free port; set "
                        "EBB_METRICS_ADDRESS to choose one";
    address.port = 0;
    endpoint->exposer_ = TryBind(address, &why);
  }
  if (endpoint->exposer_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("metrics cannot listen on ", address.Text(), ": ", why,
                     "; set EBB_METRICS_ADDRESS to a free one or to off"));
  }
  const std::vector<int> ports = endpoint->exposer_->GetListeningPorts();
  if (!ports.empty()) address.port = ports.front();
  endpoint->address_ = address.Text();
  endpoint->collectable_ = std::move(collectable);
  endpoint->exposer_->RegisterCollectable(endpoint->collectable_);
  return endpoint;
}

}  // namespace ebb
