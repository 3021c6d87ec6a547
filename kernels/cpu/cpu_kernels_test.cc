// Holds the CPU kernels to the double-precision reference, op by op.
#include <gtest/gtest.h>

#include <tuple>

#include "absl/strings/str_cat.h"
#include "kernels/device.h"
#include "kernels/ops/op_def.h"
#include "kernels/testing/op_suite.h"

namespace ebb {
namespace {

class CpuKernels : public testing::TestWithParam<std::tuple<int, DType>> {};

TEST_P(CpuKernels, AgreeWithReference) {
  const auto device = MakeCpuDevice(DescribeCpu(2));
  ASSERT_TRUE(device.ok()) << device.status();
  const auto [op, precision] = GetParam();
  for (const std::string& failure :
       RunOpCases(static_cast<Op>(op), (*device)->kernels(),
                  (*device)->backend(), precision)) {
    ADD_FAILURE() << failure;
  }
}

INSTANTIATE_TEST_SUITE_P(
    AllOps, CpuKernels,
    testing::Combine(testing::Range(0, kNumOps),
                     testing::Values(DType::kF32, DType::kBf16)),
    [](const auto& info) {
      return absl::StrCat(
          GetOpDef(static_cast<Op>(std::get<0>(info.param))).name, "_",
          DTypeName(std::get<1>(info.param)));
    });

}  // namespace
}  // namespace ebb
