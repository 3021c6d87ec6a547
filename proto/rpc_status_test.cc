// Statuses over the wire: codes, messages and violations, within the size that
// gRPC's trailers have.
#include "proto/rpc_status.h"

#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/validator.h"
#include "proto/violations.h"

namespace ebb {
namespace {

TEST(RpcStatus, CodesAndMessagesThereAndBack) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  for (int code = 1; code <= 16; ++code) {
    if (code == 2) continue;  // UNKNOWN, below
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(ToGrpcStatus(status).error_code(), code);
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
  }
}

TEST(RpcStatus, UnknownOfTheTransportIsUnavailable) {
  EXPECT_EQ(
      FromGrpcStatus(grpc::Status(grpc::StatusCode::UNKNOWN, "stream")).code(),
      absl::StatusCode::kUnavailable);
}

TEST(RpcStatus, ViolationsTravel) {
  const absl::Status status = ValidateSpec(v1::JobSpec());
  ASSERT_EQ(GetViolations(status).size(), 9u);
  EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
}

TEST(RpcStatus, GarbageInDetailsIsLeftOut) {
  const absl::Status status = FromGrpcStatus(grpc::Status(
      grpc::StatusCode::NOT_FOUND, "no such job", "\xff\xff\xff garbage"));
  EXPECT_EQ(status, absl::NotFoundError("no such job"));
}

TEST(RpcStatus, CutsWhatTrailersCannotHold) {
  // Percent encoding triples a message of such characters.
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "\xc3\xbc";
  const grpc::Status plain = ToGrpcStatus(absl::InternalError(text));
  EXPECT_LT(plain.error_message().size(), 1000u);

  std::vector<v1::Violation> violations(1000);
  for (v1::Violation& violation : violations) {
    violation.set_field("memory.recompute");
    violation.set_value(text);
    violation.set_rule("must be short");
  }
  const grpc::Status status = ToGrpcStatus(
      ViolationsStatus(absl::StatusCode::kInvalidArgument, violations));
  EXPECT_LT(
      3 * status.error_message().size() + status.error_details().size() * 4 / 3,
      8000u);
  const std::vector<v1::Violation> received =
      GetViolations(FromGrpcStatus(status));
  ASSERT_GT(received.size(), 2u);
  ASSERT_LT(received.size(), violations.size());
  EXPECT_EQ(received.back().value(),
            std::to_string(violations.size() - received.size() + 1) +
                " more mistakes");
}

}  // namespace
}  // namespace ebb
