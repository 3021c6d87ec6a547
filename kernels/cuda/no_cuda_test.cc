// A build without CUDA says so, and has no kernel by mistake.
#include <gtest/gtest.h>

#include "kernels/device.h"
#include "kernels/kernel_table.h"

namespace ebb {
namespace {

TEST(NoCuda, HasNoDevice) {
  EXPECT_EQ(MakeCudaDevice(Backend{}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(NoCuda, HasNoKernels) {
  for (int op = 0; op < kNumOps; ++op) {
    EXPECT_EQ(FindKernels(CudaKernelTable(), static_cast<Op>(op), DType::kF32), nullptr);
  }
}

}  // namespace
}  // namespace ebb
