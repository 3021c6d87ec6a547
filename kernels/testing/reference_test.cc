// The reference is right: its gradients agree with central differences of its
// forward kernels, and it has the properties that the formulas promise.
#include "kernels/testing/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/ops/attention_scores.h"
#include "kernels/ops/causal_softmax.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/op_def.h"
#include "kernels/testing/op_cases.h"

namespace ebb::reference {
namespace {

Call MakeCall(const OpCase& op_case) {
  return {.attrs = op_case.attrs,
          .types = op_case.types,
          .slots = DrawSlots(op_case),
          .grads = std::vector<Elements>(op_case.types.size()),
          .scalars = op_case.scalars,
          .value_key = op_case.value_key,
          .row_offset = op_case.row_offset};
}

// Gradients that arrive, also for the loss, which stands for its own.
std::vector<Elements> ArrivingGradients(const OpCase& op_case) {
  std::vector<Elements> grads = DrawGradients(op_case);
  if (op_case.op == Op::kCrossEntropy) {
    grads[cross_entropy::kLosses].assign(
        op_case.types[cross_entropy::kLosses].num_elements(),
        op_case.attrs.loss_scale);
  }
  return grads;
}

// Sum over the outputs of output times arriving gradient.
double Objective(const OpDef& op, Call call,
                 const std::vector<Elements>& arriving) {
  RunForward(op.op, call);
  double objective = 0;
  for (int slot = 0; slot < op.num_slots(); ++slot) {
    if (op.slots[slot].role != Role::kOutput) continue;
    for (size_t i = 0; i < call.slots[slot].size(); ++i) {
      objective += call.slots[slot][i] * arriving[slot][i];
    }
  }
  return objective;
}

bool HasGradient(const SlotDef& slot) {
  return slot.role == Role::kInput || slot.role == Role::kParam;
}

// Small enough for two forward passes an element.
bool IsSmall(const OpCase& op_case) {
  int64_t num_elements = 0;
  for (const TensorType& type : op_case.types) {
    num_elements += type.num_elements();
  }
  return num_elements <= 800 && op_case.input_scale <= 4;
}

// Gradients by the reference: zero before, so that accumulation adds to it.
std::vector<Elements> Gradients(const OpCase& op_case,
                                const std::vector<Elements>& arriving) {
  const OpDef& op = GetOpDef(op_case.op);
  Call call = MakeCall(op_case);
  RunForward(op_case.op, call);
  for (int slot = 0; slot < op.num_slots(); ++slot) {
    const int64_t num_elements = op_case.types[slot].num_elements();
    if (op.slots[slot].role == Role::kOutput) {
      call.grads[slot] = arriving[slot];
    } else if (op.slots[slot].grad_passes_through) {
      continue;
    } else if (HasGradient(op.slots[slot])) {
      call.grads[slot].assign(num_elements, 0);
    }
  }
  if (GetKernels(op_case.op).backward != nullptr) {
    GetKernels(op_case.op).backward(call);
  }
  for (int slot = 0; slot < op.num_slots(); ++slot) {
    if (!op.slots[slot].grad_passes_through) continue;
    for (int output = op.num_slots() - 1; output >= 0; --output) {
      if (op.slots[output].role == Role::kOutput) {
        call.grads[slot] = arriving[output];
      }
    }
  }
  return call.grads;
}

class ReferenceGradient : public ::testing::TestWithParam<int> {};

TEST_P(ReferenceGradient, AgreesWithCentralDifferences) {
  const OpDef& op = GetOpDef(static_cast<Op>(GetParam()));
  bool has_output = false;
  for (const SlotDef& slot : op.slots) {
    has_output = has_output || slot.role == Role::kOutput;
  }
  if (!has_output) {
    EXPECT_EQ(GetKernels(op.op).backward, nullptr);
    return;
  }
  int num_checked = 0;
  for (const OpCase& op_case : OpCases(op.op)) {
    if (!IsSmall(op_case)) continue;
    const std::vector<Elements> arriving = ArrivingGradients(op_case);
    const std::vector<Elements> grads = Gradients(op_case, arriving);
    Call call = MakeCall(op_case);
    for (int slot = 0; slot < op.num_slots(); ++slot) {
      if (!HasGradient(op.slots[slot]) || call.slots[slot].empty()) continue;
      ++num_checked;
      double largest = 0, largest_error = 0;
      for (size_t i = 0; i < call.slots[slot].size(); ++i) {
        constexpr double kStep = 1e-5;
        const double value = call.slots[slot][i];
        call.slots[slot][i] = value + kStep;
        const double above = Objective(op, call, arriving);
        call.slots[slot][i] = value - kStep;
        const double below = Objective(op, call, arriving);
        call.slots[slot][i] = value;
        const double expected = (above - below) / (2 * kStep);
        largest = std::max(largest, std::abs(expected));
        largest_error =
            std::max(largest_error, std::abs(grads[slot][i] - expected));
      }
      // A gradient that is 0 everywhere leaves rounding of the differences.
      EXPECT_LE(largest_error, 1e-6 * std::max(largest, 1e-3))
          << op_case.name << ": " << op.slots[slot].name;
    }
  }
  EXPECT_GT(num_checked, 0);
}

INSTANTIATE_TEST_SUITE_P(Ops, ReferenceGradient, ::testing::Range(0, kNumOps),
                         [](const auto& info) {
                           return std::string(
                               GetOpDef(static_cast<Op>(info.param)).name);
                         });

TEST(Reference, DifferencesCoverWhatMatters) {
  const auto any = [](Op op, auto predicate) {
    const std::vector<OpCase> cases = OpCases(op);
    return std::any_of(cases.begin(), cases.end(), [&](const OpCase& c) {
      return IsSmall(c) && predicate(c);
    });
  };
  const auto grouped = [](const OpCase& c) {
    return c.attrs.num_kv_heads < c.attrs.num_heads;
  };
  EXPECT_TRUE(any(Op::kAttention, grouped));
  EXPECT_TRUE(any(Op::kAttentionScores, grouped));
  EXPECT_TRUE(any(Op::kAttentionContext, grouped));
  EXPECT_TRUE(
      any(Op::kAttention, [](const OpCase& c) { return c.attrs.dropout > 0; }));
  EXPECT_TRUE(
      any(Op::kLinear, [](const OpCase& c) { return !c.types[2].bound(); }));
  EXPECT_TRUE(
      any(Op::kCrossEntropy, [](const OpCase& c) { return c.pad_targets; }));
}

TEST(Reference, SoftmaxRowsSumToOneAndSeeNoFuture) {
  for (const OpCase& op_case : OpCases(Op::kCausalSoftmax)) {
    Call call = MakeCall(op_case);
    RunForward(op_case.op, call);
    const int64_t seq_len = op_case.types[causal_softmax::kX].dims[3];
    const Elements& y = call.slots[causal_softmax::kY];
    for (int64_t row = 0; row < static_cast<int64_t>(y.size()) / seq_len;
         ++row) {
      double sum = 0;
      for (int64_t s = 0; s < seq_len; ++s) {
        sum += y[row * seq_len + s];
        if (s > row % seq_len) {
          EXPECT_EQ(y[row * seq_len + s], 0);
        }
      }
      EXPECT_NEAR(sum, 1, 1e-12);
    }
  }
}

TEST(Reference, DropoutMaskDoesNotDependOnTheMicrobatch) {
  // Four sequences at once, then two times two.
  OpCase whole;
  for (const OpCase& op_case : OpCases(Op::kDropout)) {
    if (op_case.attrs.dropout > 0 && op_case.row_offset == 0) whole = op_case;
  }
  const int64_t width = 5;
  whole.attrs.seq_len = 3;
  whole.types.assign(2, TensorType(DType::kF32, 12, width));
  Call call = MakeCall(whole);
  call.slots[dropout::kX].assign(12 * width, 1);
  RunForward(Op::kDropout, call);
  const Elements expected = call.slots[dropout::kY];
  EXPECT_GT(std::count(expected.begin(), expected.end(), 0), 0);

  Elements joined;
  for (int half = 0; half < 2; ++half) {
    Call part = call;
    part.types.assign(2, TensorType(DType::kF32, 6, width));
    part.slots[dropout::kX].assign(6 * width, 1);
    part.scalars.first_sequence += 2 * half;
    RunForward(Op::kDropout, part);
    joined.insert(joined.end(), part.slots[dropout::kY].begin(),
                  part.slots[dropout::kY].end());
  }
  EXPECT_EQ(joined, expected);

  // The same rows as a chunk of the whole.
  Call chunk = call;
  chunk.types.assign(2, TensorType(DType::kF32, 6, width));
  chunk.slots[dropout::kX].assign(6 * width, 1);
  chunk.row_offset = 4;
  RunForward(Op::kDropout, chunk);
  EXPECT_EQ(chunk.slots[dropout::kY], Elements(expected.begin() + 4 * width,
                                               expected.begin() + 10 * width));
}

}  // namespace
}  // namespace ebb::reference
