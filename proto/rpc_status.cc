#include "proto/rpc_status.h"

#include <google/protobuf/any.pb.h>
#include <grpcpp/support/status.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/rpc_status.pb.h"
#include "proto/utf8.h"
#include "proto/violations.h"

namespace ebb {

namespace {

// Trailers hold at most 8 KiB in all (gRPC core's default for
// GRPC_ARG_MAX_METADATA_SIZE); the message may grow threefold by percent
// encoding, details by a third in base64.
constexpr size_t kMaxMessageBytes = 800;
constexpr size_t kMaxDetailBytes = 4000;

// Cuts text at a character's border.
std::string Cut(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = 0;
  while (end < text.size()) {
    // A byte that is no UTF-8 counts as a character.
    const size_t length =
        std::max<size_t>(1, Utf8CharacterBytes(text.substr(end)));
    if (end + length > max_bytes) break;
    end += length;
  }
  return absl::StrCat(text.substr(0, end), "...");
}

// As many violations as fit, and how many did not.
v1::Violations Fit(const std::vector<v1::Violation>& violations) {
  v1::Violations fitting;
  size_t bytes = 0;
  for (size_t i = 0; i < violations.size(); ++i) {
    v1::Violation violation = violations[i];
    violation.set_value(OneLine(violation.value()));
    violation.set_rule(Cut(violation.rule(), 500));
    violation.set_fix(Cut(violation.fix(), 500));
    // Two bytes and a length of at most two around each.
    bytes += violation.ByteSizeLong() + 4;
    if (bytes > kMaxDetailBytes - 100) {
      v1::Violation& rest = *fitting.add_violations();
      rest.set_value(absl::StrCat(violations.size() - i, " more mistakes"));
      rest.set_rule("too many to send at once");
      rest.set_fix("correct those above first");
      break;
    }
    *fitting.add_violations() = std::move(violation);
  }
  return fitting;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message =
      Cut(std::string(status.message()), kMaxMessageBytes);
  const std::vector<v1::Violation> violations = GetViolations(status);
  if (violations.empty()) return grpc::Status(code, message);
  v1::RpcStatus details;
  details.set_code(static_cast<int>(status.code()));
  google::protobuf::Any& any = *details.add_details();
  any.set_type_url(kViolationsTypeUrl);
  any.set_value(Fit(violations).SerializeAsString());
  return grpc::Status(code, message, details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  v1::RpcStatus details;
  if (!status.error_details().empty() &&
      details.ParseFromString(status.error_details())) {
    for (const google::protobuf::Any& any : details.details()) {
      v1::Violations violations;
      if (any.type_url() != kViolationsTypeUrl ||
          !violations.ParseFromString(any.value()) ||
          violations.violations().empty()) {
        continue;
      }
      return ViolationsStatus(
          static_cast<absl::StatusCode>(status.error_code()),
          {violations.violations().begin(), violations.violations().end()});
    }
  }
  auto code = static_cast<absl::StatusCode>(status.error_code());
  if (code == absl::StatusCode::kUnknown) {
    code = absl::StatusCode::kUnavailable;
  }
  return absl::Status(code, status.error_message());
}

}  // namespace ebb
