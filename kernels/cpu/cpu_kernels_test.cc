// Holds the CPU kernels to the double-precision reference, op by op.
#include <gtest/gtest.h>

#include "kernels/device.h"
#include "kernels/ops/op_def.h"
#include "kernels/testing/op_suite.h"

namespace ebb {
namespace {

class CpuKernels : public testing::TestWithParam<int> {};

TEST_P(CpuKernels, AgreeWithReference) {
  const auto device = MakeCpuDevice(DescribeCpu(2));
  ASSERT_TRUE(device.ok()) << device.status();
  for (const std::string& failure :
       RunOpCases(static_cast<Op>(GetParam()), (*device)->kernels(),
                  (*device)->backend())) {
    ADD_FAILURE() << failure;
  }
}

INSTANTIATE_TEST_SUITE_P(AllOps, CpuKernels, testing::Range(0, kNumOps),
                         [](const testing::TestParamInfo<int>& info) {
                           return std::string(
                               GetOpDef(static_cast<Op>(info.param)).name);
                         });

}  // namespace
}  // namespace ebb
