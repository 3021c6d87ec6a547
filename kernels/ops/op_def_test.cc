// Properties that every description has, FLOPs of known shapes, and errors that
// name the slot.
#include "kernels/ops/op_def.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/ops/adamw.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/attention_context.h"
#include "kernels/ops/attention_scores.h"
#include "kernels/ops/causal_softmax.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/encode.h"
#include "kernels/ops/gelu.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/position_embedding.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/swiglu.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

std::vector<const OpDef*> AllOps() {
  std::vector<const OpDef*> ops;
  for (int op = 0; op < kNumOps; ++op) {
    ops.push_back(&GetOpDef(static_cast<Op>(op)));
  }
  return ops;
}

bool HasGradient(const SlotDef& slot) {
  return slot.role == Role::kInput || slot.role == Role::kParam;
}

TEST(OpDef, TableIsInTheOrderOfTheEnum) {
  for (int op = 0; op < kNumOps; ++op) {
    EXPECT_EQ(static_cast<int>(GetOpDef(static_cast<Op>(op)).op), op);
  }
}

TEST(OpDef, NamesAreUniqueWords) {
  std::set<std::string> names;
  for (const OpDef* op : AllOps()) {
    EXPECT_TRUE(names.insert(op->name).second) << op->name;
    std::set<std::string> slots;
    for (const SlotDef& slot : op->slots) {
      EXPECT_TRUE(slots.insert(slot.name).second) << op->name << slot.name;
      EXPECT_EQ(std::string(slot.name).find_first_not_of(
                    "abcdefghijklmnopqrstuvwxyz"),
                std::string::npos)
          << slot.name;
    }
  }
}

TEST(OpDef, HasItsFunctions) {
  for (const OpDef* op : AllOps()) {
    EXPECT_NE(op->infer, nullptr) << op->name;
    EXPECT_NE(op->forward_flops, nullptr) << op->name;
    EXPECT_NE(op->backward_flops, nullptr) << op->name;
    // Rope turns the output of a product and stands for it.
    EXPECT_EQ(op->is_product,
              op->product_flops != nullptr || op->op == Op::kRope)
        << op->name;
    EXPECT_LE(op->num_slots(), 32) << op->name;
  }
}

TEST(OpDef, GradientsBelongToInputsAndParams) {
  for (const OpDef* op : AllOps()) {
    for (const SlotDef& slot : op->slots) {
      EXPECT_EQ(slot.grad_reads >> op->num_slots(), 0u)
          << op->name << "." << slot.name;
      if (!HasGradient(slot)) {
        EXPECT_EQ(slot.grad_reads, 0u) << op->name << "." << slot.name;
      }
      if (slot.grad_passes_through) {
        EXPECT_EQ(slot.role, Role::kInput) << op->name << "." << slot.name;
        EXPECT_EQ(slot.grad_reads, 0u) << op->name << "." << slot.name;
      }
    }
  }
}

TEST(OpDef, OverwritesNameWhatTheKernelWritesAndReads) {
  for (const OpDef* op : AllOps()) {
    for (const Overwrite& overwrite : op->may_overwrite) {
      const SlotDef& written = op->slots[overwrite.written];
      const SlotDef& read = op->slots[overwrite.read];
      if (!overwrite.backward) {
        EXPECT_EQ(written.role, Role::kOutput) << op->name;
        EXPECT_EQ(read.role, Role::kInput) << op->name;
        EXPECT_FALSE(overwrite.read_gradient) << op->name;
        continue;
      }
      EXPECT_EQ(written.role, Role::kInput) << op->name;
      if (overwrite.read_gradient) {
        EXPECT_EQ(read.role, Role::kOutput) << op->name;
      } else {
        EXPECT_TRUE(HasSlot(written.grad_reads, overwrite.read)) << op->name;
      }
    }
  }
}

TEST(OpDef, ReadsArePerGradient) {
  const OpDef& linear = GetOpDef(Op::kLinear);
  EXPECT_EQ(linear.slots[linear::kX].grad_reads, Reads(linear::kWeight));
  EXPECT_EQ(linear.slots[linear::kWeight].grad_reads, Reads(linear::kX));
  EXPECT_EQ(linear.slots[linear::kBias].grad_reads, Reads());
  const OpDef& norm = GetOpDef(Op::kLayerNorm);
  EXPECT_EQ(norm.slots[layer_norm::kGain].grad_reads,
            Reads(layer_norm::kX, layer_norm::kMean, layer_norm::kRstd));
}

// Infers and returns the types of an op.
std::vector<TensorType> Infer(Op op, const OpAttrs& attrs,
                              std::vector<TensorType> types) {
  types.resize(GetOpDef(op).num_slots());
  EXPECT_EQ(GetOpDef(op).infer(attrs, types), absl::OkStatus());
  return types;
}

TEST(OpDef, LinearCountsTwoFlopsPerMultiplyAdd) {
  const OpDef& op = GetOpDef(Op::kLinear);
  const std::vector<TensorType> types =
      Infer(Op::kLinear, {},
            {{DType::kF32, 6, 5}, {DType::kF32, 7, 5}, {DType::kF32, 7}});
  EXPECT_EQ(types[linear::kY], TensorType(DType::kF32, 6, 7));
  EXPECT_EQ(op.product_flops({}, types, 0), 2 * 6 * 5 * 7);
  EXPECT_EQ(op.forward_flops({}, types), 2 * 6 * 5 * 7 + 6 * 7);
  EXPECT_EQ(op.backward_flops({}, types, Reads(linear::kX)), 2 * 6 * 5 * 7);
  EXPECT_EQ(op.backward_flops(
                {}, types, Reads(linear::kX, linear::kWeight, linear::kBias)),
            2 * 2 * 6 * 5 * 7 + 6 * 7);
  EXPECT_EQ(op.backward_flops({}, types, Reads(linear::kBias)), 6 * 7);
  EXPECT_EQ(op.product_flops({}, types, Reads(linear::kBias)), 0);
}

TEST(OpDef, FusedAttentionCountsWhatTheUnfusedOpsCount) {
  // B 2, T 8, H 4, K 2, W 3.
  const OpAttrs attrs = {
      .num_heads = 4, .num_kv_heads = 2, .seq_len = 8, .dropout = 0.1f};
  const TensorType q(DType::kF32, 16, 12), kv(DType::kF32, 16, 6);
  const std::vector<TensorType> fused =
      Infer(Op::kAttention, attrs, {q, kv, kv});
  const std::vector<TensorType> scores =
      Infer(Op::kAttentionScores, attrs, {q, kv});
  const std::vector<TensorType> softmax =
      Infer(Op::kCausalSoftmax, attrs, {scores[attention_scores::kScores]});
  const std::vector<TensorType> dropout =
      Infer(Op::kDropout, attrs, {softmax[causal_softmax::kY]});
  const std::vector<TensorType> context =
      Infer(Op::kAttentionContext, attrs, {dropout[dropout::kY], kv});
  EXPECT_EQ(fused[attention::kY], q);
  EXPECT_EQ(context[attention_context::kY], q);
  EXPECT_EQ(fused[attention::kLse], TensorType(DType::kF32, 2, 4, 8));

  const int64_t product = 2 * 2 * 4 * 8 * 8 * 3;
  const OpDef& op = GetOpDef(Op::kAttention);
  EXPECT_EQ(op.product_flops(attrs, fused, 0), 2 * product);
  const uint32_t all = Reads(attention::kQ, attention::kK, attention::kV);
  EXPECT_EQ(op.product_flops(attrs, fused, all), 4 * product);
  EXPECT_EQ(op.forward_flops(attrs, fused),
            GetOpDef(Op::kAttentionScores).forward_flops(attrs, scores) +
                GetOpDef(Op::kCausalSoftmax).forward_flops(attrs, softmax) +
                GetOpDef(Op::kDropout).forward_flops(attrs, dropout) +
                GetOpDef(Op::kAttentionContext).forward_flops(attrs, context) +
                2 * 2 * 4 * 8);  // lse
  EXPECT_EQ(op.inner_recompute_flops(attrs, fused),
            product + 3 * 2 * 4 * 8 * 8);
  // The value's gradient alone needs neither dP nor its row sums.
  EXPECT_EQ(op.backward_flops(attrs, fused, Reads(attention::kV)),
            product + 2 * 4 * 8 * 8);
}

TEST(OpDef, ElementwiseFlopsOfKnownShapes) {
  const OpAttrs attrs = {.seq_len = 4};
  const TensorType x(DType::kF32, 8, 10);
  EXPECT_EQ(GetOpDef(Op::kGelu).forward_flops({}, Infer(Op::kGelu, {}, {x})),
            9 * 80);
  EXPECT_EQ(
      GetOpDef(Op::kLayerNorm)
          .forward_flops({}, Infer(Op::kLayerNorm, {}, {x, {DType::kF32, 10}})),
      6 * 80 + 5 * 8);
  const std::vector<TensorType> norm =
      Infer(Op::kRmsNorm, {}, {x, {DType::kF32, 10}});
  EXPECT_EQ(norm[rms_norm::kRstd], TensorType(DType::kF32, 8));
  EXPECT_EQ(GetOpDef(Op::kRmsNorm).forward_flops({}, norm), 4 * 80 + 4 * 8);
  EXPECT_EQ(
      GetOpDef(Op::kRmsNorm).backward_flops({}, norm, Reads(rms_norm::kGain)),
      3 * 80);
  const std::vector<TensorType> gated = Infer(Op::kSwiglu, {}, {x});
  EXPECT_EQ(gated[swiglu::kY], TensorType(DType::kF32, 8, 5));
  EXPECT_EQ(GetOpDef(Op::kSwiglu).forward_flops({}, gated), 5 * 40);
  EXPECT_EQ(GetOpDef(Op::kSwiglu).backward_flops({}, gated, Reads(swiglu::kX)),
            11 * 40);
  EXPECT_EQ(GetOpDef(Op::kCrossEntropy)
                .forward_flops(
                    {}, Infer(Op::kCrossEntropy, {}, {x, {DType::kI32, 8}})),
            3 * 80 + 3 * 8);
  EXPECT_EQ(GetOpDef(Op::kAdd).forward_flops({}, Infer(Op::kAdd, {}, {x, x})),
            80);
  EXPECT_EQ(GetOpDef(Op::kPositionEmbedding)
                .backward_flops(attrs,
                                Infer(Op::kPositionEmbedding, attrs,
                                      {x, {DType::kF32, 4, 10}}),
                                Reads(position_embedding::kX)),
            0);
  EXPECT_EQ(
      GetOpDef(Op::kEmbedding)
          .forward_flops({}, Infer(Op::kEmbedding, {},
                                   {{DType::kI32, 8}, {DType::kF32, 50, 10}})),
      0);
}

// The activations' type goes through; statistics and losses stay fp32.
TEST(OpDef, OutputsHaveTheTypeOfTheirInputs) {
  const TensorType x(DType::kBf16, 8, 12);
  const OpAttrs attrs = {.num_heads = 4, .num_kv_heads = 4, .seq_len = 4};
  const auto linear = Infer(Op::kLinear, {}, {x, {DType::kBf16, 5, 12}});
  EXPECT_EQ(linear[linear::kY], TensorType(DType::kBf16, 8, 5));
  const auto norm = Infer(Op::kLayerNorm, {}, {x, {DType::kBf16, 12}});
  EXPECT_EQ(norm[layer_norm::kY], x);
  EXPECT_EQ(norm[layer_norm::kRstd], TensorType(DType::kF32, 8));
  const auto rms_norm = Infer(Op::kRmsNorm, {}, {x, {DType::kBf16, 12}});
  EXPECT_EQ(rms_norm[rms_norm::kY], x);
  EXPECT_EQ(rms_norm[rms_norm::kRstd], TensorType(DType::kF32, 8));
  const auto swiglu = Infer(Op::kSwiglu, {}, {x});
  EXPECT_EQ(swiglu[swiglu::kY], TensorType(DType::kBf16, 8, 6));
  const auto attention = Infer(Op::kAttention, attrs, {x, x, x});
  EXPECT_EQ(attention[attention::kY], x);
  EXPECT_EQ(attention[attention::kLse], TensorType(DType::kF32, 2, 4, 4));
  const auto scores = Infer(Op::kAttentionScores, attrs, {x, x});
  EXPECT_EQ(scores[attention_scores::kScores],
            TensorType(DType::kBf16, 2, 4, 4, 4));
  const auto loss = Infer(Op::kCrossEntropy, {}, {x, {DType::kI32, 8}});
  EXPECT_EQ(loss[cross_entropy::kLosses], TensorType(DType::kF32, 8));
  const auto embedding =
      Infer(Op::kEmbedding, {}, {{DType::kI32, 8}, {DType::kBf16, 50, 12}});
  EXPECT_EQ(embedding[embedding::kY], x);
}

TEST(OpDef, GradientsOfParamsAreFp32) {
  const TensorType type(DType::kBf16, 8, 12);
  EXPECT_EQ(GradientType(Role::kParam, type), TensorType(DType::kF32, 8, 12));
  EXPECT_EQ(GradientType(Role::kInput, type), type);
  EXPECT_EQ(GradientType(Role::kParam, TensorType()), TensorType());
}

TEST(OpDef, EncodeAddsAScaleForARow) {
  const OpAttrs fp8 = {.result = DType::kF8E4M3};
  const TensorType error(DType::kF64, encode::kNumErrors);
  const TensorType x(DType::kBf16, 2, 4, 8, 6);
  const auto types = Infer(Op::kEncode, fp8, {x, {}, {}, error});
  EXPECT_EQ(types[encode::kCode], TensorType(DType::kF8E4M3, 2, 4, 8, 6));
  EXPECT_EQ(types[encode::kScale], TensorType(DType::kF32, 2, 4, 8));
  const OpDef& op = GetOpDef(Op::kEncode);
  EXPECT_EQ(op.forward_flops(fp8, types), 7 * x.num_elements());
  const TensorType row(DType::kF32, 9);
  EXPECT_EQ(Infer(Op::kEncode, fp8, {row, {}, {}, error})[encode::kScale],
            TensorType(DType::kF32, 1));
  const OpAttrs bf16 = {.result = DType::kBf16};
  EXPECT_FALSE(
      Infer(Op::kEncode, bf16, {row, {}, {}, error})[encode::kScale].bound());
}

TEST(OpDef, RopeTurnsQueriesAndKeysAlone) {
  // Width 4; 3 query heads and 1 key head turn, the value head does not.
  const OpAttrs attrs = {
      .num_heads = 3, .num_kv_heads = 1, .seq_len = 4, .rope_theta = 1e4};
  const TensorType x(DType::kF32, 8, 20);
  const std::vector<TensorType> types = Infer(Op::kRope, attrs, {x});
  EXPECT_EQ(types[rope::kY], x);
  const OpDef& op = GetOpDef(Op::kRope);
  EXPECT_EQ(op.slots[rope::kX].grad_reads, Reads());
  const int64_t pairs = 8 * 2;  // rows times pairs of a head
  EXPECT_EQ(op.forward_flops(attrs, types), pairs * (4 * 6 + 3));
  EXPECT_EQ(op.backward_flops(attrs, types, Reads(rope::kX)),
            op.forward_flops(attrs, types));
}

struct BadCase {
  Op op;
  OpAttrs attrs;
  std::vector<TensorType> types;
  const char* error;
};

TEST(OpDef, ErrorsNameTheSlotAndEndWithWhatWasGiven) {
  const TensorType x(DType::kF32, 8, 12);
  const TensorType bf16(DType::kBf16, 8, 12);
  const TensorType scalar(DType::kF64, 1);
  const OpAttrs heads = {.num_heads = 4, .num_kv_heads = 2, .seq_len = 4};
  const BadCase cases[] = {
      {Op::kLinear,
       {},
       {{}, x},
       "linear.x: expected fp32 or bf16 with 2 dims of at "
       "least 1, got nothing"},
      {Op::kLinear,
       {},
       {x, {DType::kF32, 5, 11}},
       "linear.weight: expected fp32 [5, 12], got fp32 [5, 11]"},
      {Op::kLinear,
       {},
       {x, {DType::kF32, 5, 12}, {DType::kF32, 12}},
       "linear.bias: expected fp32 [5], got fp32 [12]"},
      {Op::kLinear, {}, {{DType::kF16, 8, 12}, x}, "linear.x: "},
      {Op::kLinear,
       {},
       {bf16, x},
       "linear.weight: expected bf16 with 2 dims of at least 1, got fp32"},
      {Op::kAttention,
       {.num_heads = 4, .num_kv_heads = 4, .seq_len = 4},
       {bf16, bf16, x},
       "attention.v: expected bf16 [8, 12], got fp32 [8, 12]"},
      {Op::kLayerNorm,
       {},
       {bf16, {DType::kF32, 12}},
       "layer_norm.gain: expected bf16 [12], got fp32 [12]"},
      {Op::kLayerNorm,
       {},
       {x},
       "layer_norm.gain: expected fp32 [12], got "
       "nothing"},
      {Op::kLayerNorm,
       {.epsilon = -1},
       {x, {DType::kF32, 12}},
       "layer_norm: epsilon: must be at least 0, got -1"},
      {Op::kEmbedding, {}, {{DType::kF32, 8}, x}, "embedding.tokens: "},
      {Op::kPositionEmbedding,
       {.seq_len = 8},
       {x, {DType::kF32, 7, 12}},
       "position_embedding.weight: expected at least 8 rows of width 12, got "
       "fp32 [7, 12]"},
      {Op::kPositionEmbedding,
       {.seq_len = 3},
       {x, x},
       "position_embedding.x: expected a multiple of seq_len 3 rows"},
      {Op::kAttention,
       {.num_heads = 4, .num_kv_heads = 3, .seq_len = 4},
       {x, x, x},
       "attention: num_kv_heads: must divide num_heads 4, got 3"},
      {Op::kAttention,
       heads,
       {x, x, x},
       "attention.k: expected fp32 [8, 6], got fp32 [8, 12]"},
      {Op::kAttentionScores,
       {.num_heads = 5, .num_kv_heads = 5, .seq_len = 4},
       {x, x},
       "attention_scores.q: expected a width that is a multiple of 5"},
      {Op::kAttentionContext,
       heads,
       {x, {DType::kF32, 8, 6}},
       "attention_context.probs: expected fp32 [2, 4, 4, 4], got fp32"},
      {Op::kCausalSoftmax,
       {},
       {{DType::kF32, 1, 2, 3, 4}},
       "causal_softmax.x: expected equal dims 2 and 3"},
      {Op::kDropout,
       {.seq_len = 4, .dropout = 1},
       {x},
       "dropout: dropout: must be in [0, 1), got 1"},
      {Op::kDropout, {}, {x}, "dropout: seq_len: must be at least 1, got 0"},
      {Op::kGelu, {}, {{DType::kF32, 0, 4}}, "gelu.x: "},
      {Op::kRmsNorm,
       {},
       {x, {DType::kF32, 11}},
       "rms_norm.gain: expected fp32 [12], got fp32 [11]"},
      {Op::kRmsNorm,
       {.epsilon = -1},
       {x, {DType::kF32, 12}},
       "rms_norm: epsilon: must be at least 0, got -1"},
      {Op::kSwiglu,
       {},
       {{DType::kF32, 8, 5}},
       "swiglu.x: expected an even width, gate and up, got fp32 [8, 5]"},
      {Op::kRope,
       {.num_heads = 4, .num_kv_heads = 1, .seq_len = 4, .rope_theta = 1e4},
       {{DType::kF32, 8, 18}},
       "rope.x: expected 6 heads of an even width, got fp32 [8, 18]"},
      {Op::kRope,
       {.num_heads = 4, .num_kv_heads = 2, .seq_len = 4, .rope_theta = 1e4},
       {x},
       "rope.x: expected a width that is a multiple of 8 heads"},
      {Op::kRope,
       {.num_heads = 4, .num_kv_heads = 1, .seq_len = 4},
       {x},
       "rope: rope_theta: must be above 0, got 0"},
      {Op::kAdd,
       {},
       {x, {DType::kF32, 12, 8}},
       "add.b: expected fp32 [8, 12], got fp32 [12, 8]"},
      {Op::kCrossEntropy, {}, {x, {DType::kI32, 7}}, "cross_entropy.targets: "},
      {Op::kSum, {}, {{DType::kF32, 8}, {DType::kF32, 1}}, "sum.total: "},
      {Op::kFillZero, {}, {{}}, "fill_zero.x: expected any type, got nothing"},
      {Op::kSquaredNorm, {}, {x, x}, "squared_norm.total: "},
      {Op::kClipScale, {}, {scalar, scalar, x}, "clip_scale.scale: "},
      {Op::kClipScale,
       {.clip = -1},
       {scalar, scalar, scalar},
       "clip_scale: clip: must be at least 0, got -1"},
      {Op::kAdamw,
       {.beta1 = 1},
       {x, x, x, x, scalar},
       "adamw: beta1: must be in [0, 1), got 1"},
      {Op::kAdamw, {}, {x, x, {DType::kF32, 8}, x, scalar}, "adamw.m: "},
      {Op::kAdamw, {}, {bf16, x, x, x, scalar}, "adamw.param: "},
      {Op::kAdamw,
       {},
       {x, x, x, x, scalar, x},
       "adamw.weight: expected bf16 [8, 12], got fp32 [8, 12]"},
      {Op::kEncode,
       {},
       {x},
       "encode: expected a result of bf16 or fp8_e4m3, got none"},
      {Op::kEncode,
       {.result = DType::kBf16},
       {bf16},
       "encode.x: expected fp32, which bf16 is narrower than, got bf16"},
      {Op::kEncode,
       {.result = DType::kF8E4M3},
       {{DType::kI32, 8, 12}},
       "encode.x: expected fp32 or bf16 with 2 dims of at least 1, got int32"},
      {Op::kEncode,
       {.result = DType::kF8E4M3},
       {x, {}, {}, scalar},
       "encode.error: expected fp64 [3], got fp64 [1]"},
      {Op::kDecode, {.result = DType::kF32}, {x}, "decode.code: "},
      {Op::kDecode,
       {.result = DType::kF32},
       {{DType::kF8E4M3, 8, 12}},
       "decode.scale: expected fp32 [8], got nothing"},
      {Op::kDecode,
       {.result = DType::kF32},
       {bf16, {DType::kF32, 8}},
       "decode.scale: expected nothing, got fp32 [8]"},
  };
  for (const BadCase& bad : cases) {
    std::vector<TensorType> types = bad.types;
    types.resize(GetOpDef(bad.op).num_slots());
    const absl::Status status = GetOpDef(bad.op).infer(bad.attrs, types);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.error;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.error));
  }
}

}  // namespace
}  // namespace ebb
