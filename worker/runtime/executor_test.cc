// Tests of the executor on a program written by hand, with kernels that record
// what they were given.
#include "worker/runtime/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops/clip_scale.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/fill_zero.h"
#include "kernels/ops/gelu.h"
#include "kernels/ops/sum.h"
#include "kernels/status.h"
#include "worker/model/graph.h"
#include "worker/runtime/testing/heap_device.h"
#include "worker/runtime/testing/toy_program.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What a kernel saw. Offsets are from the start of the step arena; -1: null.
struct Seen {
  int64_t x = -1;
  int64_t y = -1;
  int64_t x_grad = -1;
  int64_t y_grad = -1;
  bool has_grads = false;
  uint64_t value_key = 0;
  int64_t row_offset = 0;
  int64_t first_sequence = 0;
  float x0 = 0;  // first element of x
};

// Kernels are plain functions, so what they record is global.
struct Records {
  std::byte* step = nullptr;
  std::vector<Seen> dropout_forward;
  std::vector<Seen> gelu_forward;
  std::vector<Seen> gelu_backward;
  double norm = 1;
  bool started_poisoned = false;
};
Records records;

int64_t Offset(const Tensor& tensor) {
  return tensor.data == nullptr ? -1 : tensor.as<std::byte>() - records.step;
}

Seen See(const OpCall& call) {
  Seen seen;
  seen.x = Offset(call.slots[0]);
  seen.y = Offset(call.slots[1]);
  seen.has_grads = call.grads != nullptr;
  if (seen.has_grads) {
    seen.x_grad = Offset(call.grads[0]);
    seen.y_grad = Offset(call.grads[1]);
  }
  seen.value_key = call.value_key;
  seen.row_offset = call.row_offset;
  seen.first_sequence = call.scalars->first_sequence;
  seen.x0 = call.slots[0].as<float>()[0];
  return seen;
}

// Sets all elements to 1 where they are fp32, and to 0 otherwise.
void Fill(const OpCall& call, Stream) {
  const Tensor& x = call.slots[fill_zero::kX];
  if (x.type.dtype == DType::kF64) {
    records.started_poisoned = std::isnan(*x.as<double>());
    *x.as<double>() = 0;
    return;
  }
  std::fill_n(x.as<float>(), x.type.num_elements(), 1.0f);
}
void DropoutForward(const OpCall& call, Stream) {
  records.dropout_forward.push_back(See(call));
  call.slots[dropout::kY].as<float>()[0] = 2;
}
void GeluForward(const OpCall& call, Stream) {
  records.gelu_forward.push_back(See(call));
  call.slots[gelu::kY].as<float>()[0] = 3;
}
void GeluBackward(const OpCall& call, Stream) {
  records.gelu_backward.push_back(See(call));
}
void Sum(const OpCall& call, Stream) {
  const Tensor& x = call.slots[sum::kX];
  for (int64_t n = 0; n < x.type.num_elements(); ++n) {
    *call.slots[sum::kTotal].as<double>() += x.as<float>()[n];
  }
}
void ClipScale(const OpCall& call, Stream) {
  *call.slots[clip_scale::kNorm].as<double>() = records.norm;
}

constexpr KernelRow kFillRows[] = {{DType::kF32, Fill, nullptr}};
constexpr KernelRow kDropoutRows[] = {{DType::kF32, DropoutForward, nullptr}};
constexpr KernelRow kGeluRows[] = {{DType::kF32, GeluForward, GeluBackward}};
constexpr KernelRow kSumRows[] = {{DType::kF32, Sum, nullptr}};
constexpr KernelRow kClipRows[] = {{DType::kF32, ClipScale, nullptr}};

KernelTable RecordingKernels() {
  KernelTable table;
  table.rows[static_cast<int>(Op::kFillZero)] = kFillRows;
  table.rows[static_cast<int>(Op::kDropout)] = kDropoutRows;
  table.rows[static_cast<int>(Op::kGelu)] = kGeluRows;
  table.rows[static_cast<int>(Op::kSum)] = kSumRows;
  table.rows[static_cast<int>(Op::kClipScale)] = kClipRows;
  return table;
}

// Remembers positions; the last `num_padded` targets of each fill are padding.
class CountingSource final : public BatchSource {
 public:
  absl::Status Fill(int64_t first_sequence, std::span<int32_t> tokens,
                    std::span<int32_t> targets) override {
    if (first_sequence >= fail_from) {
      return absl::DataLossError("id 300 outside the vocabulary");
    }
    positions.push_back(first_sequence);
    std::fill(tokens.begin(), tokens.end(), 1);
    std::fill(targets.begin(), targets.end() - num_padded, 1);
    std::fill(targets.end() - num_padded, targets.end(), -1);
    return absl::OkStatus();
  }

  std::vector<int64_t> positions;
  int num_padded = 0;
  int64_t fail_from = std::numeric_limits<int64_t>::max();
};

class ExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    records = Records();
    step_ = *ArenaMemory::Allocate(device_, program_.step_bytes);
    state_ = *ArenaMemory::Allocate(device_, program_.state_bytes);
    records.step = step_.data();
  }

  absl::StatusOr<std::unique_ptr<Executor>> Create(bool poison) {
    return Executor::Create(program_, device_, View(), {.poison = poison});
  }
  ArenaView View() const {
    return {state_.data(), state_.bytes(), step_.data(), step_.bytes()};
  }
  StepReport Run(bool poison = true) {
    auto executor = Create(poison);
    EXPECT_TRUE(executor.ok()) << executor.status();
    if (!executor.ok()) return {};
    auto report = (*executor)->RunStep({.seed = 1, .step = 7}, source_, 40);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : StepReport();
  }

  Program program_ = MakeToyProgram();
  KernelTable kernels_ = RecordingKernels();
  HeapDevice device_{kernels_};
  ArenaMemory step_;
  ArenaMemory state_;
  CountingSource source_;
};

TEST_F(ExecutorTest, WalksIterationsByStride) {
  Run();
  ASSERT_EQ(records.dropout_forward.size(), 2u * kToyLayers);
  ASSERT_EQ(records.gelu_backward.size(), 2u * kToyLayers);
  for (int n = 0; n < 2 * kToyLayers; ++n) {
    const int64_t layer = n % kToyLayers;
    const Seen& forward = records.dropout_forward[n];
    EXPECT_EQ(forward.x, kToyX);
    EXPECT_EQ(forward.y, kToySaved + 64 * layer);
    EXPECT_EQ(forward.row_offset, 5 + 10 * layer);
    EXPECT_EQ(forward.value_key, ValueKey("L*.y", layer));
    EXPECT_EQ(records.gelu_backward[n].x,
              kToySaved + 64 * (kToyLayers - 1 - layer));
  }
}

TEST_F(ExecutorTest, BindsWhatIsDeclaredAndNullElsewhere) {
  Run();
  const Seen& forward = records.gelu_forward.at(0);
  EXPECT_FALSE(forward.has_grads);
  EXPECT_EQ(forward.y, kToyLive);
  const Seen& backward = records.gelu_backward.at(0);
  EXPECT_TRUE(backward.has_grads);
  EXPECT_EQ(backward.y, -1);
  EXPECT_EQ(backward.y_grad, kToyLive);
  EXPECT_EQ(backward.x_grad, kToyGrad);
}

TEST_F(ExecutorTest, ReadsMicrobatchesByPosition) {
  Run();
  EXPECT_THAT(source_.positions, ElementsAre(40, 41));
  // Draws are keyed by the place within the global batch.
  EXPECT_EQ(records.dropout_forward.at(0).first_sequence, 0);
  EXPECT_EQ(records.dropout_forward.at(kToyLayers).first_sequence, 1);
}

TEST_F(ExecutorTest, AveragesLossOverTargetsThatCount) {
  source_.num_padded = 1;
  const StepReport report = Run();
  EXPECT_EQ(report.step, 7);
  EXPECT_EQ(report.tokens, 2 * 3);
  // The toy head gives every one of 2 * 4 rows a loss of 1.
  EXPECT_DOUBLE_EQ(report.loss, 8.0 / 6.0);
  EXPECT_EQ(report.gradient_norm, 1);
  EXPECT_FALSE(report.skipped);
}

TEST_F(ExecutorTest, ReportsSkippedUpdate) {
  records.norm = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(Run().skipped);
}

TEST_F(ExecutorTest, CountsMemoryByClass) {
  const StepReport report = Run();
  // The largest use is in the first backward iteration: total, tokens,
  // targets, x, both gradients, and three saved values.
  MemoryBytes expected;
  expected[MemoryClass::kParameters] = 64;
  expected[MemoryClass::kOptimizer] = 128;
  expected[MemoryClass::kSaved] = 3 * 64;
  expected[MemoryClass::kLive] = 6 * 64;
  expected[MemoryClass::kFragmentation] = kToyStepBytes - 9 * 64;
  expected[MemoryClass::kRuntime] = device_.backend().runtime_bytes;
  EXPECT_EQ(report.memory, expected);
  EXPECT_EQ(report.memory.Sum(), program_.state_bytes + program_.step_bytes +
                                     device_.backend().runtime_bytes);
  EXPECT_EQ(report.saved_bytes, 3 * 64);
}

TEST_F(ExecutorTest, CountsFlopsOfWhatRan) {
  const StepReport report = Run();
  EXPECT_EQ(report.recompute_flops, 2 * kToyLayers * 11);
  EXPECT_EQ(report.model_flops, 2 * kToyLayers * (3 + 7 + 13));
}

TEST_F(ExecutorTest, SplitsDurationIntoPhases) {
  const StepReport report = Run();
  const PhaseSeconds& phases = report.phases;
  EXPECT_NEAR(phases.forward + phases.recompute + phases.backward +
                  phases.optimizer + phases.data_wait,
              report.duration_seconds, 1e-9);
  EXPECT_GT(phases.forward, 0);
  EXPECT_GT(phases.data_wait, 0);
}

TEST_F(ExecutorTest, PoisonsArenaAndDroppedValues) {
  Run(/*poison=*/true);
  EXPECT_TRUE(records.started_poisoned);
  const auto at = [&](int64_t offset) {
    return *reinterpret_cast<const float*>(step_.data() + offset);
  };
  EXPECT_TRUE(std::isnan(at(kToySaved)));
  EXPECT_TRUE(std::isnan(at(kToyLosses)));
  EXPECT_TRUE(std::isnan(at(kToyX)));  // freed by a drop
}

TEST_F(ExecutorTest, LeavesBytesAloneWithoutPoison) {
  Run(/*poison=*/false);
  EXPECT_FALSE(records.started_poisoned);
  EXPECT_EQ(*reinterpret_cast<const float*>(step_.data() + kToySaved), 2);
}

TEST_F(ExecutorTest, KeepsSavedValuesUntilBackward) {
  Run(/*poison=*/true);
  for (const Seen& seen : records.gelu_backward) EXPECT_EQ(seen.x0, 2);
}

TEST_F(ExecutorTest, ListsAllMissingKernels) {
  static constexpr KernelRow kForwardOnly[] = {
      {DType::kF32, GeluForward, nullptr}};
  kernels_.rows[static_cast<int>(Op::kGelu)] = kForwardOnly;
  kernels_.rows[static_cast<int>(Op::kSum)] = {};
  const auto executor = Create(false);
  EXPECT_EQ(executor.status().code(), absl::StatusCode::kUnimplemented);
  const std::string message(executor.status().message());
  EXPECT_THAT(message, HasSubstr("gelu fp32 backward, sum fp32 forward"));
}

TEST_F(ExecutorTest, RefusesArenasThatAreTooSmall) {
  ArenaView view = View();
  view.step_bytes -= 64;
  const auto executor = Executor::Create(program_, device_, view, {});
  EXPECT_EQ(executor.status().code(), absl::StatusCode::kInternal);
}

TEST_F(ExecutorTest, RefusesUnsoundProgram) {
  program_.blocks[kToyForward].instructions[1].frees.push_back(1);
  const auto executor = Create(false);
  EXPECT_EQ(executor.status().code(), absl::StatusCode::kInternal);
}

TEST_F(ExecutorTest, NamesInstructionOfAnError) {
  source_.fail_from = 41;
  auto executor = Create(false);
  ASSERT_TRUE(executor.ok()) << executor.status();
  const auto report = (*executor)->RunStep({}, source_, 40);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(report.status().message()),
              HasSubstr("vocabulary: instruction batch of block load"));
}

TEST_F(ExecutorTest, CountsEachStepAfresh) {
  auto executor = Create(true);
  ASSERT_TRUE(executor.ok()) << executor.status();
  const auto first = (*executor)->RunStep({.step = 1}, source_, 0);
  const auto second = (*executor)->RunStep({.step = 2}, source_, 2);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->memory, second->memory);
  EXPECT_EQ(first->model_flops, second->model_flops);
  EXPECT_EQ(first->tokens, second->tokens);
  EXPECT_EQ(first->loss, second->loss);
}

}  // namespace
}  // namespace ebb
