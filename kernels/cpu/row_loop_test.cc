// A row loop gives the bits of the kernels that it runs, however it cuts rows.
#include "kernels/cpu/row_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/device.h"
#include "kernels/ops/add.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/op_def.h"
#include "kernels/testing/op_cases.h"
#include "kernels/testing/tensor_elements.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;

std::unique_ptr<Device> TestDevice() {
  auto device = MakeCpuDevice(DescribeCpu(2));
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

// Tensors with memory of their own.
class Memory {
 public:
  Tensor Make(const TensorType& type, int64_t row_stride = 0) {
    if (!type.bound()) return {};
    if (row_stride == 0) row_stride = type.row_elements();
    const int64_t bytes = type.dims[0] * row_stride * DTypeBytes(type.dtype);
    return {buffers_.emplace_back(bytes, uint8_t{0xff}).data(), type,
            row_stride};
  }
  const std::deque<std::vector<uint8_t>>& bytes() const { return buffers_; }

 private:
  std::deque<std::vector<uint8_t>> buffers_;
};

// One call of an op's kernel on a case, with results of its own.
class CaseCall {
 public:
  CaseCall(const OpCase& op_case, uint32_t bound)
      : op_(GetOpDef(op_case.op)), case_(op_case), bound_(bound) {
    const auto values = DrawSlots(op_case);
    const auto gradients = DrawGradients(op_case);
    for (int slot = 0; slot < op_.num_slots(); ++slot) {
      const TensorType& type = op_case.types[slot];
      const int64_t stride = op_case.views[slot].row_stride;
      slots_.push_back(memory_.Make(type, stride));
      if (!values[slot].empty()) WriteElements(values[slot], slots_[slot]);
      const bool arrives =
          op_.slots[slot].role == Role::kOutput && !gradients[slot].empty();
      const bool asked = HasSlot(bound, slot);
      const TensorType grad = GradientType(op_.slots[slot].role, type);
      grads_.push_back(arrives || asked ? memory_.Make(grad, stride)
                                        : Tensor());
      if (grads_[slot].bound() && !gradients[slot].empty()) {
        WriteElements(gradients[slot], grads_[slot]);
      }
    }
    call_ = {.attrs = &case_.attrs,
             .slots = slots_.data(),
             .grads = bound == 0 ? nullptr : grads_.data(),
             .value_key = case_.value_key,
             .row_offset = case_.row_offset,
             .scalars = &case_.scalars};
    stage_.call = &call_;
    stage_.num_slots = op_.num_slots();
    stage_.row_gradients = bound & op_.row_slots;
    stage_.whole_gradients = bound & ~op_.row_slots;
    for (int slot = 0; slot < op_.num_slots(); ++slot) {
      if (!HasSlot(op_.row_slots, slot)) continue;
      const auto index = static_cast<int8_t>(slot);
      if (slots_[slot].bound()) rows_.push_back({index, false});
      if (bound != 0 && grads_[slot].bound()) rows_.push_back({index, true});
    }
    stage_.rows = rows_;
  }
  CaseCall(const CaseCall&) = delete;
  CaseCall& operator=(const CaseCall&) = delete;

  // Makes the results of forward, which backward reads.
  void RunForward(Kernel kernel) {
    OpCall forward = call_;
    forward.grads = nullptr;
    kernel(forward, nullptr);
  }
  void RunWhole(Kernel kernel) { kernel(call_, nullptr); }
  void RunInSlices(Kernel kernel, int64_t slice_rows) {
    stage_.kernel = kernel;
    const RowOperand& first = rows_.front();
    const auto& tensors = first.gradient ? grads_ : slots_;
    cpu::RunRowLoop({.stages = {&stage_, 1},
                     .num_rows = NumLoopRows(tensors[first.slot].type),
                     .slice_rows = slice_rows},
                    nullptr);
  }
  const std::deque<std::vector<uint8_t>>& bytes() const {
    return memory_.bytes();
  }

 private:
  const OpDef& op_;
  const OpCase case_;
  const uint32_t bound_;
  Memory memory_;
  std::vector<Tensor> slots_, grads_;
  OpCall call_;
  std::vector<RowOperand> rows_;
  RowStage stage_;
};

class RowLoopOfOneOp : public ::testing::TestWithParam<std::tuple<int, DType>> {
};

TEST_P(RowLoopOfOneOp, GivesTheBitsOfTheKernel) {
  const Op op = static_cast<Op>(std::get<0>(GetParam()));
  const DType precision = std::get<1>(GetParam());
  const OpDef& def = GetOpDef(op);
  const auto device = TestDevice();
  const KernelRow& row = *FindKernels(device->kernels(), op, precision);
  for (const OpCase& op_case : OpCases(op, precision)) {
    SCOPED_TRACE(op_case.name);
    CaseCall whole(op_case, 0);
    whole.RunWhole(row.forward);
    for (const int64_t slice_rows : {1, 3, 64}) {
      CaseCall cut(op_case, 0);
      cut.RunInSlices(row.forward, slice_rows);
      EXPECT_THAT(cut.bytes(), ElementsAreArray(whole.bytes()));
    }
    uint32_t gradients = KernelGradients(def);
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      if (!op_case.types[slot].bound()) gradients &= ~Reads(slot);
    }
    // What sums over rows alone is no part of a loop.
    if ((gradients & def.row_slots) == 0) continue;
    CaseCall backward(op_case, gradients);
    backward.RunForward(row.forward);
    backward.RunWhole(row.backward);
    for (const int64_t slice_rows : {1, 3, 64}) {
      CaseCall cut(op_case, gradients);
      cut.RunForward(row.forward);
      cut.RunInSlices(row.backward, slice_rows);
      EXPECT_THAT(cut.bytes(), ElementsAreArray(backward.bytes()));
    }
  }
}

std::vector<int> OpsOfRows() {
  std::vector<int> ops;
  for (int op = 0; op < kNumOps; ++op) {
    if (GetOpDef(static_cast<Op>(op)).row_slots != 0) ops.push_back(op);
  }
  return ops;
}

INSTANTIATE_TEST_SUITE_P(
    AllOps, RowLoopOfOneOp,
    ::testing::Combine(::testing::ValuesIn(OpsOfRows()),
                       ::testing::Values(DType::kF32, DType::kBf16)),
    [](const auto& info) {
      return absl::StrCat(
          GetOpDef(static_cast<Op>(std::get<0>(info.param))).name, "_",
          DTypeName(std::get<1>(info.param)));
    });

// dropout, add and layer_norm, with the first result in scratch.
TEST(RowLoop, KeepsAnIntermediateInScratch) {
  const auto device = TestDevice();
  constexpr int64_t kRows = 37, kWidth = 65;
  const TensorType type(DType::kF32, kRows, kWidth);
  const TensorType row(DType::kF32, kWidth), column(DType::kF32, kRows);
  const OpAttrs attrs = {.seq_len = 37, .epsilon = 1e-5f, .dropout = 0.3f};
  const StepScalars scalars = {.seed = 7, .step = 3};
  const auto fill = [](const Tensor& tensor, int seed) {
    std::vector<double> elements(tensor.type.num_elements());
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = static_cast<double>((i * 7919 + seed) % 2003) / 1001 - 1;
    }
    WriteElements(elements, tensor);
  };
  const auto run = [&](int64_t slice_rows, bool scratch) {
    Memory memory;
    const Tensor x = memory.Make(type), other = memory.Make(type),
                 gain = memory.Make(row), bias = memory.Make(row),
                 sum = memory.Make(type), y = memory.Make(type),
                 mean = memory.Make(column), rstd = memory.Make(column),
                 dropped = memory.Make(type);
    fill(x, 1);
    fill(other, 2);
    fill(gain, 3);
    fill(bias, 4);
    Tensor middle = dropped;
    if (scratch) middle.data = nullptr;
    const Tensor slots[3][6] = {
        {x, middle}, {other, middle, sum}, {sum, gain, bias, y, mean, rstd}};
    const Op ops[3] = {Op::kDropout, Op::kAdd, Op::kLayerNorm};
    const int64_t offset = scratch ? 0 : -1;
    const std::vector<RowOperand> rows[3] = {
        {{dropout::kX, false}, {dropout::kY, false, offset}},
        {{add::kA, false}, {add::kB, false, offset}, {add::kY, false}},
        {{layer_norm::kX, false},
         {layer_norm::kY, false},
         {layer_norm::kMean, false},
         {layer_norm::kRstd, false}}};
    OpCall calls[3];
    RowStage stages[3];
    for (int n = 0; n < 3; ++n) {
      calls[n] = {.attrs = &attrs,
                  .slots = slots[n],
                  .value_key = 5,
                  .scalars = &scalars};
      stages[n] = {
          .kernel =
              FindKernels(device->kernels(), ops[n], DType::kF32)->forward,
          .call = &calls[n],
          .num_slots = GetOpDef(ops[n]).num_slots(),
          .rows = rows[n]};
    }
    const int64_t thread_bytes = AlignUp(slice_rows * kWidth * 4);
    std::vector<std::byte> memory_of_threads(2 * thread_bytes);
    cpu::RunRowLoop({.stages = stages,
                     .num_rows = kRows,
                     .slice_rows = slice_rows,
                     .scratch = memory_of_threads.data(),
                     .thread_scratch_bytes = thread_bytes},
                    nullptr);
    auto bytes = memory.bytes();
    bytes.pop_back();  // of what may be in scratch
    return bytes;
  };
  const auto whole = run(kRows, false);
  EXPECT_THAT(run(4, false), ElementsAreArray(whole));
  EXPECT_THAT(run(4, true), ElementsAreArray(whole));
  EXPECT_THAT(run(1, true), ElementsAreArray(whole));
}

}  // namespace
}  // namespace ebb
