// AdamW's published numbers, sums that must not depend on threads, and the
// order in which rows are added.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cpu/kernels.h"
#include "kernels/device.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/clip_scale.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/squared_norm.h"
#include "kernels/ops/sum.h"

namespace ebb::cpu {
namespace {

Tensor VectorOf(std::vector<float>& values) {
  const auto size = static_cast<int64_t>(values.size());
  return {values.data(), {DType::kF32, size}, 1};
}

Tensor ScalarOf(double& value) { return {&value, {DType::kF64, 1}, 1}; }

// A parameter vector and its moments under AdamW.
struct Adamw {
  std::vector<float> param, m, v;
  std::vector<Bf16> weight;  // empty: the parameter is its own weight
  OpAttrs attrs = {
      .epsilon = 1e-8f, .beta1 = 0.9f, .beta2 = 0.999f, .weight_decay = 0.1f};
  StepScalars scalars = {.learning_rate = 0.01f};

  explicit Adamw(size_t size, float value)
      : param(size, value), m(size), v(size) {}

  void Step(std::vector<float> grad, double scale) {
    ++scalars.step;
    Tensor slots[adamw::kNumSlots];
    slots[adamw::kParam] = VectorOf(param);
    slots[adamw::kGrad] = VectorOf(grad);
    slots[adamw::kM] = VectorOf(m);
    slots[adamw::kV] = VectorOf(v);
    slots[adamw::kScale] = ScalarOf(scale);
    if (!weight.empty()) {
      slots[adamw::kWeight] = {
          weight.data(),
          {DType::kBf16, static_cast<int64_t>(weight.size())},
          1};
    }
    OpCall call;
    call.attrs = &attrs;
    call.slots = slots;
    call.scalars = &scalars;
    AdamwUpdate(call, nullptr);
  }
};

// Sizes around a vector: every position must get the same value.
class AdamwSizes : public testing::TestWithParam<int> {};

TEST_P(AdamwSizes, TakesThePublishedSteps) {
  const size_t size = GetParam();
  Adamw adamw(size, 1.0f);
  const float gradients[] = {0.1f, -0.2f, 0.05f};
  const double expected[] = {0.989000001, 0.991672036, 0.992047271};
  for (int step = 0; step < 3; ++step) {
    adamw.Step(std::vector<float>(size, gradients[step]), 1.0);
    for (const float param : adamw.param) {
      EXPECT_NEAR(param, expected[step], 2e-7);
      EXPECT_EQ(param, adamw.param[0]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, AdamwSizes,
                         testing::Values(1, 3, 15, 16, 17, 100));

TEST(UpdateKernels, AdamwMovesByATinyGradient) {
  Adamw adamw(5, 1.0f);
  adamw.attrs.weight_decay = 0;
  adamw.Step(std::vector<float>(5, 1e-8f), 1.0);
  for (const float param : adamw.param) EXPECT_NEAR(1 - param, 0.0050, 1e-5);
}

TEST(UpdateKernels, AdamwSkipsAStepWithoutAScale) {
  for (const double scale : {std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity()}) {
    Adamw adamw(17, 1.0f);
    adamw.Step(std::vector<float>(17, 0.5f), 0.5);
    const Adamw before = adamw;
    adamw.Step(std::vector<float>(17, std::nanf("")), scale);
    EXPECT_EQ(adamw.param, before.param);
    EXPECT_EQ(adamw.m, before.m);
    EXPECT_EQ(adamw.v, before.v);
  }
}

// Numbers between those of bf16, at ties and at the ends, in every position of
// a vector. A learning rate of zero leaves the master as it is.
TEST(UpdateKernels, AdamwRoundsTheWeightAsTheFormatSays) {
  std::vector<float> numbers = {0.0f,    -0.0f,    1.0f,  1e-40f,
                                3.3e38f, -3.4e38f, 1e-3f, 0.1f};
  for (uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
    for (uint32_t high : {0x3F80u, 0x3F81u, 0xBFFFu, 0x0001u, 0x7F7Fu}) {
      numbers.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  numbers.push_back(std::bit_cast<float>(0x7F800001u));  // a NaN
  for (const size_t size : {numbers.size(), size_t{17}, size_t{1}}) {
    for (size_t first = 0; first + size <= numbers.size(); ++first) {
      Adamw adamw(size, 0);
      adamw.scalars.learning_rate = 0;
      std::copy_n(numbers.begin() + first, size, adamw.param.begin());
      adamw.weight.resize(size);
      adamw.Step(std::vector<float>(size, 0.5f), 1.0);
      for (size_t i = 0; i < size; ++i) {
        if (std::isnan(numbers[first + i])) {
          EXPECT_TRUE(std::isnan(ToFloat(adamw.weight[i])));
        } else {
          EXPECT_EQ(adamw.weight[i].bits, RoundToBf16(numbers[first + i]).bits)
              << numbers[first + i];
        }
      }
    }
  }
}

// cases.md D4: steps of less than half a bf16 step add up in the master.
TEST(UpdateKernels, AdamwKeepsWhatTheWeightCannotHold) {
  Adamw adamw(33, 1.0f);
  adamw.attrs.weight_decay = 0;
  adamw.scalars.learning_rate = 1e-4f;
  adamw.weight.resize(33);
  adamw.Step(std::vector<float>(33, 0.1f), 1.0);
  for (const Bf16 weight : adamw.weight) EXPECT_EQ(ToFloat(weight), 1.0f);
  for (int step = 0; step < 99; ++step) {
    adamw.Step(std::vector<float>(33, 0.1f), 1.0);
  }
  for (size_t i = 0; i < 33; ++i) {
    EXPECT_NEAR(adamw.param[i], 0.99f, 1e-4f);
    EXPECT_EQ(adamw.weight[i].bits, RoundToBf16(adamw.param[i]).bits);
    EXPECT_LT(ToFloat(adamw.weight[i]), 1.0f);
  }
}

TEST(UpdateKernels, ClipScaleOfANormThatIsNotFiniteIsNan) {
  double total = std::numeric_limits<double>::infinity();
  double norm = 0, scale = 0;
  Tensor slots[clip_scale::kNumSlots];
  slots[clip_scale::kTotal] = ScalarOf(total);
  slots[clip_scale::kNorm] = ScalarOf(norm);
  slots[clip_scale::kScale] = ScalarOf(scale);
  const OpAttrs attrs = {.clip = 1.0f};
  OpCall call;
  call.attrs = &attrs;
  call.slots = slots;
  ClipScaleUpdate(call, nullptr);
  EXPECT_TRUE(std::isinf(norm));
  EXPECT_TRUE(std::isnan(scale));
}

double SquaredNorm(std::vector<float> values, int threads) {
  omp_set_num_threads(threads);
  double total = 1;
  Tensor slots[squared_norm::kNumSlots];
  slots[squared_norm::kX] = VectorOf(values);
  slots[squared_norm::kTotal] = ScalarOf(total);
  OpCall call;
  call.slots = slots;
  SquaredNormUpdate(call, nullptr);
  return total;
}

// Blocks of 4096, each summed by element index mod 8: the order that the
// kernel promises, whatever threads and vectors.
TEST(UpdateKernels, SquaredNormAddsInItsOrder) {
  std::vector<float> values(3 * 4096 + 1001);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i)) * std::exp2(i % 40 - 20.0f);
  }
  double expected = 1;
  for (size_t block = 0; block < values.size(); block += 4096) {
    double sums[8] = {};
    for (size_t i = block; i < std::min(block + 4096, values.size()); ++i) {
      sums[i % 8] += static_cast<double>(values[i]) * values[i];
    }
    double total = 0;
    for (const double sum : sums) total += sum;
    expected += total;
  }
  EXPECT_EQ(SquaredNorm(values, 1), expected);
  EXPECT_EQ(SquaredNorm(values, 2), expected);
  EXPECT_EQ(SquaredNorm(values, 3), expected);
}

// One token everywhere: its row is a sum of all, in the order of n. Terms of
// falling size make every other order round differently.
TEST(UpdateKernels, EmbeddingGradientAddsRowsInOrder) {
  constexpr int64_t kRows = 500, kWidth = 130, kVocab = 3;
  std::vector<int32_t> tokens(kRows, 1);
  std::vector<float> dy(kRows * kWidth);
  for (int64_t i = 0; i < kRows * kWidth; ++i) {
    dy[i] = std::sin(static_cast<float>(i)) * std::exp2(i / kWidth % 24);
  }
  std::vector<float> expected(kVocab * kWidth, 0.25f);
  for (int64_t n = 0; n < kRows; ++n) {
    for (int64_t d = 0; d < kWidth; ++d) {
      expected[kWidth + d] += dy[n * kWidth + d];
    }
  }
  for (const int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    std::vector<float> dweight(kVocab * kWidth, 0.25f);
    Tensor slots[embedding::kNumSlots], grads[embedding::kNumSlots];
    slots[embedding::kTokens] = {tokens.data(), {DType::kI32, kRows}, 1};
    grads[embedding::kWeight] = {
        dweight.data(), {DType::kF32, kVocab, kWidth}, kWidth};
    grads[embedding::kY] = {dy.data(), {DType::kF32, kRows, kWidth}, kWidth};
    OpCall call;
    call.slots = slots;
    call.grads = grads;
    EmbeddingBackward(call, nullptr);
    EXPECT_EQ(dweight, expected) << threads << " threads";
  }
}

}  // namespace
}  // namespace ebb::cpu
