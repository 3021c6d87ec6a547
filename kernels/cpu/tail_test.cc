// A product with a tail gives the bits of the product and then the op, however
// the product is cut into blocks and among threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/device.h"
#include "kernels/kernel_table.h"
#include "kernels/ops/gelu.h"
#include "kernels/ops/linear.h"
#include "kernels/row_loop.h"
#include "kernels/testing/tensor_elements.h"

namespace ebb {
namespace {

using ::testing::Each;
using ::testing::Not;

struct Shape {
  int64_t rows, inputs, outputs;
};

// Blocks of the product are 144 rows and 384 columns, of 256 deep.
constexpr Shape kShapes[] = {{1, 1, 1},      {7, 5, 3},       {37, 65, 129},
                             {145, 64, 385}, {300, 300, 400}, {290, 1100, 770}};

// A linear with weights and both its sides, and a gelu behind its result: the
// output, or backward the gradient of x.
class Fixture {
 public:
  Fixture(Shape shape, DType dtype, bool backward, bool in_place)
      : backward_(backward) {
    const int64_t width = backward ? shape.inputs : shape.outputs;
    const TensorType type(dtype, shape.rows, width);
    slots_[linear::kWeight] = Filled({dtype, shape.outputs, shape.inputs}, 1);
    if (backward) {
      grads_[linear::kY] = Filled({dtype, shape.rows, shape.outputs}, 2);
      grads_[linear::kX] = Make(type);
      // What a gradient does not read is not given.
      slots_[linear::kX] = Tensor();
    } else {
      slots_[linear::kX] = Filled({dtype, shape.rows, shape.inputs}, 3);
      slots_[linear::kBias] = Filled({dtype, shape.outputs}, 4);
      slots_[linear::kY] = Make(type);
    }
    const Tensor between = backward ? grads_[linear::kX] : slots_[linear::kY];
    const Tensor result = in_place ? between : Make(type);
    gelu_slots_[gelu::kX] = backward ? Filled(type, 5) : between;
    if (backward) {
      gelu_grads_[gelu::kY] = between;
      gelu_grads_[gelu::kX] = result;
      rows_ = {{gelu::kX, false}, {gelu::kY, true}, {gelu::kX, true}};
    } else {
      gelu_slots_[gelu::kY] = result;
      rows_ = {{gelu::kX, false}, {gelu::kY, false}};
    }
    gelu_call_ = {.attrs = &attrs_,
                  .slots = gelu_slots_,
                  .grads = backward ? gelu_grads_ : nullptr};
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  void Run(const Device& device, DType dtype, bool as_tail) {
    const KernelRow& product =
        *FindKernels(device.kernels(), Op::kLinear, dtype);
    const KernelRow& gelu = *FindKernels(device.kernels(), Op::kGelu, dtype);
    const Kernel gelu_kernel = backward_ ? gelu.backward : gelu.forward;
    const RowStage tail = {.kernel = gelu_kernel,
                           .call = &gelu_call_,
                           .num_slots = gelu::kNumSlots,
                           .rows = rows_};
    OpCall call = {.attrs = &attrs_,
                   .slots = slots_,
                   .grads = backward_ ? grads_ : nullptr};
    TensorType types[linear::kNumSlots];
    for (int slot = 0; slot < linear::kNumSlots; ++slot) {
      types[slot] =
          slots_[slot].bound() ? slots_[slot].type : grads_[slot].type;
    }
    call.workspace_bytes =
        GetOpDef(Op::kLinear)
            .workspace_bytes(attrs_, Types(types, linear::kNumSlots),
                             backward_ ? Reads(linear::kX) : 0,
                             device.backend());
    std::vector<std::byte> workspace(call.workspace_bytes + kAlignment);
    const auto address = reinterpret_cast<uintptr_t>(workspace.data());
    call.workspace = workspace.data() + AlignUp(address) - address;
    if (as_tail) call.tail = &tail;
    (backward_ ? product.backward : product.forward)(call, nullptr);
    if (!as_tail) gelu_kernel(gelu_call_, nullptr);
  }
  const std::vector<std::unique_ptr<std::vector<uint8_t>>>& memory() const {
    return memory_;
  }

 private:
  Tensor Make(const TensorType& type) {
    memory_.push_back(
        std::make_unique<std::vector<uint8_t>>(type.bytes(), uint8_t{0xff}));
    return {memory_.back()->data(), type, type.row_elements()};
  }
  Tensor Filled(const TensorType& type, int seed) {
    const Tensor tensor = Make(type);
    std::vector<double> elements(type.num_elements());
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = static_cast<double>((i * 7919 + seed) % 2003) / 1001 - 1;
    }
    WriteElements(elements, tensor);
    return tensor;
  }

  const bool backward_;
  const OpAttrs attrs_;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> memory_;
  Tensor slots_[linear::kNumSlots], grads_[linear::kNumSlots];
  Tensor gelu_slots_[gelu::kNumSlots], gelu_grads_[gelu::kNumSlots];
  OpCall gelu_call_;
  std::vector<RowOperand> rows_;
};

class TailOfAProduct
    : public ::testing::TestWithParam<std::tuple<DType, bool, int>> {};

TEST_P(TailOfAProduct, GivesTheBitsOfTheSequence) {
  const auto [dtype, backward, threads] = GetParam();
  const auto device = MakeCpuDevice(DescribeCpu(threads));
  ASSERT_TRUE(device.ok()) << device.status();
  for (const Shape& shape : kShapes) {
    for (const bool in_place : {false, true}) {
      SCOPED_TRACE(absl::StrCat(shape.rows, " x ", shape.inputs, " x ",
                                shape.outputs, in_place ? " in place" : ""));
      Fixture sequence(shape, dtype, backward, in_place);
      sequence.Run(**device, dtype, /*as_tail=*/false);
      Fixture fused(shape, dtype, backward, in_place);
      fused.Run(**device, dtype, /*as_tail=*/true);
      ASSERT_EQ(fused.memory().size(), sequence.memory().size());
      for (size_t n = 0; n < fused.memory().size(); ++n) {
        EXPECT_THAT(*fused.memory()[n], Not(Each(0xff)));
        EXPECT_EQ(*fused.memory()[n], *sequence.memory()[n]) << n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gelu, TailOfAProduct,
    ::testing::Combine(::testing::Values(DType::kF32, DType::kBf16),
                       ::testing::Bool(), ::testing::Values(1, 2)),
    [](const auto& info) {
      return absl::StrCat(DTypeName(std::get<0>(info.param)),
                          std::get<1>(info.param) ? "_backward_" : "_forward_",
                          std::get<2>(info.param), "_threads");
    });

}  // namespace
}  // namespace ebb
