// Frequencies, cuts, seeds and odd logits.
#include "worker/runtime/token_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace ebb {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(TokenChoice, TemperatureZeroTakesTheFirstOfTheLikeliest) {
  const std::vector<float> logits = {0.5f, 2.0f, 2.0f, -1.0f};
  for (uint64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(ChooseToken(logits, {.temperature = 0}, position), 1);
  }
}

TEST(TokenChoice, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};
  constexpr int kDraws = 20000;
  for (const double temperature : {1.0, 2.0}) {
    std::map<int32_t, int> counts;
    for (int i = 0; i < kDraws; ++i) {
      ++counts[ChooseToken(logits, {.temperature = temperature, .seed = 7}, i)];
    }
    double sum = 0;
    for (const double weight : {1.0, 2.0, 5.0}) {
      sum += std::pow(weight, 1 / temperature);
    }
    int token = 0;
    for (const double weight : {1.0, 2.0, 5.0}) {
      // Four standard deviations of a frequency of one half: 0.014.
      EXPECT_NEAR(counts[token++] / static_cast<double>(kDraws),
                  std::pow(weight, 1 / temperature) / sum, 0.014);
    }
  }
}

TEST(TokenChoice, TopKLeavesTheLikeliestAlone) {
  const std::vector<float> logits = {0.0f, 0.3f, 0.1f, 0.3f};
  std::map<int32_t, int> counts;
  for (int i = 0; i < 500; ++i) ++counts[ChooseToken(logits, {.top_k = 2}, i)];
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_GT(counts[1], 0);
  EXPECT_GT(counts[3], 0);
  EXPECT_EQ(ChooseToken(logits, {.top_k = 1}, 3), 1);
}

TEST(TokenChoice, SeedAndPositionDecide) {
  const std::vector<float> logits(100, 0.0f);
  std::vector<int32_t> first, again, other;
  for (int i = 0; i < 50; ++i) {
    first.push_back(ChooseToken(logits, {.seed = 1}, i));
    again.push_back(ChooseToken(logits, {.seed = 1}, i));
    other.push_back(ChooseToken(logits, {.seed = 2}, i));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(TokenChoice, TinyTemperaturesAndLargeLogitsStayFinite) {
  const std::vector<float> logits = {3e38f, -3e38f, 0.0f};
  EXPECT_EQ(ChooseToken(logits, {.temperature = 1e-300}, 0), 0);
  EXPECT_EQ(ChooseToken(logits, {.temperature = 1}, 0), 0);
}

TEST(TokenChoice, WhatIsNotFiniteIsNeverDrawn) {
  const float nan = std::nanf("");
  EXPECT_EQ(ChooseToken(std::vector<float>{nan, -kInfinity, 0.0f}, {}, 0), 2);
  EXPECT_EQ(ChooseToken(std::vector<float>{nan, kInfinity}, {}, 0), -1);
}

}  // namespace
}  // namespace ebb
