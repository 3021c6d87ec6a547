// The suite passes right kernels and catches each kind of wrong one: without
// this a suite that checks nothing would pass every backend.
#include "kernels/testing/op_suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/bf16.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/gelu.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/op_def.h"
#include "kernels/testing/op_cases.h"
#include "kernels/testing/reference_table.h"
#include "kernels/testing/tensor_elements.h"

namespace ebb {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class OpSuite : public ::testing::TestWithParam<int> {};

TEST_P(OpSuite, PassesTheReferenceItself) {
  for (const DType precision : {DType::kF32, DType::kBf16}) {
    EXPECT_THAT(RunOpCases(static_cast<Op>(GetParam()), ReferenceKernelTable(),
                           BuiltInCpuBackend(), precision),
                IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, OpSuite, ::testing::Range(0, kNumOps),
                         [](const auto& info) {
                           return std::string(
                               GetOpDef(static_cast<Op>(info.param)).name);
                         });

TEST(OpSuite, EveryOpHasCasesWithUniqueNames) {
  for (int op = 0; op < kNumOps; ++op) {
    std::set<std::string> names;
    for (const OpCase& op_case : OpCases(static_cast<Op>(op))) {
      EXPECT_TRUE(names.insert(op_case.name).second) << op_case.name;
      std::vector<TensorType> types = op_case.types;
      EXPECT_EQ(GetOpDef(op_case.op).infer(op_case.attrs, types),
                absl::OkStatus());
      EXPECT_EQ(types, op_case.types) << op_case.name;
    }
    EXPECT_FALSE(names.empty()) << GetOpDef(static_cast<Op>(op)).name;
  }
}

const KernelRow& ReferenceRow(Op op) {
  return *FindKernels(ReferenceKernelTable(), op, DType::kF32);
}

// Runs the suite with one kernel in place of the reference's; null keeps it.
std::vector<std::string> RunWith(Op op, Kernel forward, Kernel backward) {
  KernelRow row = ReferenceRow(op);
  if (forward != nullptr) row.forward = forward;
  if (backward != nullptr) row.backward = backward;
  KernelTable table = ReferenceKernelTable();
  table.rows[static_cast<int>(op)] = std::span<const KernelRow>(&row, 1);
  return RunOpCases(op, table, BuiltInCpuBackend());
}

TEST(OpSuite, MissesNoKernel) {
  KernelTable table = ReferenceKernelTable();
  table.rows[static_cast<int>(Op::kGelu)] = {};
  EXPECT_THAT(RunOpCases(Op::kGelu, table, BuiltInCpuBackend()),
              Contains(HasSubstr("no fp32 forward kernel")));
  KernelRow row = ReferenceRow(Op::kGelu);
  row.backward = nullptr;
  table.rows[static_cast<int>(Op::kGelu)] = std::span<const KernelRow>(&row, 1);
  EXPECT_THAT(RunOpCases(Op::kGelu, table, BuiltInCpuBackend()),
              Contains(HasSubstr("no fp32 backward kernel")));
}

TEST(OpSuite, CatchesAResultThatIsSlightlyOff) {
  const auto forward = [](const OpCall& call, Stream stream) {
    ReferenceRow(Op::kGelu).forward(call, stream);
    const Tensor& y = call.slots[gelu::kY];
    y.as<float>()[y.type.num_elements() - 1] += 1e-3f;
  };
  EXPECT_THAT(RunWith(Op::kGelu, forward, nullptr),
              Contains(HasSubstr("forward: y: element")));
}

// A bf16 result may be off by its own rounding, not by two.
TEST(OpSuite, CatchesABf16ResultThatIsRoundedTwice) {
  static constexpr auto kForward = [](const OpCall& call, Stream stream) {
    ReferenceRow(Op::kGelu).forward(call, stream);
    for (int64_t i = 0; i < call.slots[gelu::kY].type.num_elements(); ++i) {
      Bf16& y = call.slots[gelu::kY].as<Bf16>()[i];
      y = {static_cast<uint16_t>(y.bits + 1)};
    }
  };
  KernelRow row = ReferenceRow(Op::kGelu);
  row.dtype = DType::kBf16;
  row.forward = kForward;
  KernelTable table = ReferenceKernelTable();
  table.rows[static_cast<int>(Op::kGelu)] = std::span<const KernelRow>(&row, 1);
  EXPECT_THAT(RunOpCases(Op::kGelu, table, BuiltInCpuBackend(), DType::kBf16),
              Contains(HasSubstr("in bf16: forward: y: element")));
}

// Sums of a bf16 op's parameter gradients stay in fp32.
TEST(OpSuite, Bf16CasesHaveFp32ParameterGradients) {
  const OpCase op_case = OpCases(Op::kLinear, DType::kBf16)[2];
  EXPECT_EQ(op_case.types[linear::kWeight].dtype, DType::kBf16);
  EXPECT_EQ(op_case.types[linear::kY].dtype, DType::kBf16);
  bool is_wider = false;
  const auto gradients = DrawGradients(op_case);
  for (const double element : gradients[linear::kWeight]) {
    is_wider = is_wider || RoundedTo(DType::kBf16, element) != element;
  }
  EXPECT_TRUE(is_wider);
}

TEST(OpSuite, CatchesAnElementThatIsNeverWritten) {
  const auto forward = [](const OpCall& call, Stream stream) {
    const Tensor& y = call.slots[gelu::kY];
    float& last = y.as<float>()[y.type.num_elements() - 1];
    const float before = last;
    ReferenceRow(Op::kGelu).forward(call, stream);
    last = before;
  };
  EXPECT_THAT(RunWith(Op::kGelu, forward, nullptr),
              Contains(HasSubstr("a second run gives other bits")));
}

TEST(OpSuite, CatchesParamGradientsThatOverwrite) {
  const auto backward = [](const OpCall& call, Stream stream) {
    const Tensor& dbias = call.grads[linear::kBias];
    for (int64_t o = 0; dbias.bound() && o < dbias.type.num_elements(); ++o) {
      dbias.as<float>()[o] = 0;
    }
    ReferenceRow(Op::kLinear).backward(call, stream);
  };
  const std::vector<std::string> failures =
      RunWith(Op::kLinear, nullptr, backward);
  EXPECT_THAT(failures, Not(IsEmpty()));
  EXPECT_THAT(failures, Each(HasSubstr("bias: element")));
}

TEST(OpSuite, CatchesInputGradientsThatAccumulate) {
  const auto backward = [](const OpCall& call, Stream stream) {
    const Tensor& dx = call.grads[gelu::kX];
    std::vector<float> before(dx.as<float>(),
                              dx.as<float>() + dx.type.num_elements());
    ReferenceRow(Op::kGelu).backward(call, stream);
    for (size_t i = 0; i < before.size(); ++i) dx.as<float>()[i] += before[i];
  };
  EXPECT_THAT(RunWith(Op::kGelu, nullptr, backward),
              Contains(HasSubstr("x: element 0 is nan")));
}

TEST(OpSuite, CatchesWritesBeyondAResult) {
  const auto forward = [](const OpCall& call, Stream stream) {
    ReferenceRow(Op::kGelu).forward(call, stream);
    const Tensor& y = call.slots[gelu::kY];
    y.as<float>()[y.type.num_elements()] = 0;
  };
  EXPECT_THAT(RunWith(Op::kGelu, forward, nullptr),
              Contains(HasSubstr("changes bytes that are not its results")));
}

TEST(OpSuite, CatchesWritesBetweenTheRowsOfAView) {
  const auto forward = [](const OpCall& call, Stream stream) {
    ReferenceRow(Op::kAttentionScores).forward(call, stream);
    const Tensor& k = call.slots[1];
    if (k.row_stride != k.type.row_elements()) {
      k.as<float>()[k.type.row_elements()] = 0;
    }
  };
  EXPECT_THAT(RunWith(Op::kAttentionScores, forward, nullptr),
              Contains(HasSubstr("changes bytes that are not its results")));
}

TEST(OpSuite, CatchesAChangedInput) {
  const auto backward = [](const OpCall& call, Stream stream) {
    ReferenceRow(Op::kGelu).backward(call, stream);
    call.slots[gelu::kX].as<float>()[0] += 1;
  };
  EXPECT_THAT(RunWith(Op::kGelu, nullptr, backward),
              Contains(HasSubstr("changes bytes that are not its results")));
}

TEST(OpSuite, CatchesWritesBeyondTheWorkspace) {
  const auto backward = [](const OpCall& call, Stream stream) {
    ReferenceRow(Op::kLinear).backward(call, stream);
    if (call.workspace_bytes == 0) return;  // the bias alone
    static_cast<uint8_t*>(call.workspace)[call.workspace_bytes] = 0;
  };
  EXPECT_THAT(RunWith(Op::kLinear, nullptr, backward),
              Contains(HasSubstr("writes beyond its workspace")));
}

TEST(OpSuite, CatchesGarbageReadFromTheWorkspace) {
  const auto backward = [](const OpCall& call, Stream stream) {
    ReferenceRow(Op::kLinear).backward(call, stream);
    const Tensor& dbias = call.grads[linear::kBias];
    if (dbias.bound() && call.workspace_bytes > 0) {
      dbias.as<float>()[0] += 1e-30f * *static_cast<float*>(call.workspace);
    }
  };
  EXPECT_THAT(RunWith(Op::kLinear, nullptr, backward), Not(IsEmpty()));
}

TEST(OpSuite, CatchesBitsThatChangeFromRunToRun) {
  static int num_calls = 0;
  const auto forward = [](const OpCall& call, Stream stream) {
    ReferenceRow(Op::kGelu).forward(call, stream);
    // One bit of the first element, far within the tolerance.
    uint32_t& bits = call.slots[gelu::kY].as<uint32_t>()[0];
    bits ^= ++num_calls % 2;
  };
  EXPECT_THAT(RunWith(Op::kGelu, forward, nullptr),
              Each(HasSubstr("other bits")));
  EXPECT_THAT(RunWith(Op::kGelu, forward, nullptr),
              Contains(HasSubstr("a second run gives other bits")));
}

TEST(OpSuite, CatchesAKernelThatCannotWorkInPlace) {
  const auto forward = [](const OpCall& call, Stream stream) {
    const Tensor& y = call.slots[gelu::kY];
    for (int64_t i = 0; i < y.type.num_elements(); ++i) y.as<float>()[i] = 0;
    ReferenceRow(Op::kGelu).forward(call, stream);
  };
  const std::vector<std::string> failures =
      RunWith(Op::kGelu, forward, nullptr);
  EXPECT_THAT(failures, Not(IsEmpty()));
  EXPECT_THAT(failures, Each(HasSubstr("when y overwrites x")));
}

TEST(OpSuite, CatchesStateThatShouldStay) {
  const auto forward = [](const OpCall& call, Stream stream) {
    ReferenceRow(Op::kAdamw).forward(call, stream);
    uint32_t& bits = call.slots[adamw::kGrad].as<uint32_t>()[0];
    bits ^= 1;
  };
  EXPECT_THAT(RunWith(Op::kAdamw, forward, nullptr),
              Contains(HasSubstr("grad: should keep its bits")));
}

TEST(OpSuiteDeathTest, UndeclaredReadCrashes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The bias gradient of linear declares no reads, but this one reads x.
  const auto backward = [](const OpCall& call, Stream stream) {
    const volatile float* x = call.slots[linear::kX].as<float>();
    if (call.grads[linear::kBias].bound() && x[0] > 1e30f) return;
    ReferenceRow(Op::kLinear).backward(call, stream);
  };
  EXPECT_DEATH(RunWith(Op::kLinear, nullptr, backward), "");
}

}  // namespace
}  // namespace ebb
