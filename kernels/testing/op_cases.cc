// Cases of every op.
//
// Widths: 1, 3 and 17 are below and across one vector register, 65 and 257 one
// more than a multiple of every register and of common blocks. Sequences: 1,
// 31, 33 and, for blocked attention, 130.
#include "kernels/testing/op_cases.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/attention_context.h"
#include "kernels/ops/attention_scores.h"
#include "kernels/ops/clip_scale.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/encode.h"
#include "kernels/ops/type_check.h"
#include "kernels/philox.h"
#include "kernels/status.h"
#include "kernels/testing/tensor_elements.h"

namespace ebb {
namespace {

TensorType F32(int64_t d0) { return {DType::kF32, d0}; }
TensorType F32(int64_t d0, int64_t d1) { return {DType::kF32, d0, d1}; }
TensorType I32(int64_t d0) { return {DType::kI32, d0}; }

template <size_t num_sizes>
using Sizes = std::vector<std::array<int, num_sizes>>;

// Completes a case: infers its outputs and names it.
OpCase MakeCase(Op op, const OpAttrs& attrs, std::vector<TensorType> types) {
  const OpDef& def = GetOpDef(op);
  OpCase op_case;
  op_case.op = op;
  op_case.attrs = attrs;
  op_case.types = std::move(types);
  op_case.types.resize(def.num_slots());
  EBB_CHECK(def.infer(attrs, op_case.types).ok());
  op_case.views.resize(def.num_slots());
  op_case.scalars = {.seed = 1234, .step = 5, .learning_rate = 0.01f};
  op_case.scalars.first_sequence = 6;
  op_case.value_key = 0x9876543210ull;
  op_case.name = def.name;
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    absl::StrAppend(&op_case.name, " ", def.slots[slot].name, " ",
                    TypeText(op_case.types[slot]));
  }
  if (attrs.num_heads > 0) {
    absl::StrAppend(&op_case.name, " heads ", attrs.num_heads, "/",
                    attrs.num_kv_heads);
  }
  if (attrs.dropout > 0) {
    absl::StrAppend(&op_case.name, " dropout ", attrs.dropout);
  }
  return op_case;
}

// The same case in a job of bf16: its inputs and params become bf16 where the
// op takes that, and AdamW writes a rounded weight.
OpCase InBf16(OpCase op_case) {
  const OpDef& def = GetOpDef(op_case.op);
  std::vector<TensorType> types = op_case.types;
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    const Role role = def.slots[slot].role;
    if (role == Role::kInput || role == Role::kParam) {
      if (types[slot].bound()) types[slot].dtype = DType::kBf16;
    } else if (role == Role::kOutput || role == Role::kAux) {
      types[slot] = TensorType();
    }
  }
  if (op_case.op == Op::kAdamw) {
    types[adamw::kWeight] = types[adamw::kParam].WithDType(DType::kBf16);
  }
  // Refused by what reads losses, which are fp32 in every job.
  if (def.infer(op_case.attrs, types).ok()) op_case.types = std::move(types);
  op_case.name += " in bf16";
  return op_case;
}

OpCase WithScale(OpCase op_case, double input_scale) {
  op_case.input_scale = input_scale;
  absl::StrAppend(&op_case.name, " scale ", input_scale);
  return op_case;
}

// Lays slots side by side as column ranges of one buffer of `num_columns`.
OpCase WithViews(OpCase op_case, int64_t num_columns,
                 std::vector<std::pair<int, int64_t>> slot_columns) {
  for (const auto& [slot, column] : slot_columns) {
    op_case.views[slot] = {.row_stride = num_columns, .column = column};
  }
  absl::StrAppend(&op_case.name, " views");
  return op_case;
}

struct AttentionSizes {
  int num_sequences, seq_len, num_heads, num_kv_heads, head_width;

  OpAttrs attrs() const {
    return {.num_heads = num_heads,
            .num_kv_heads = num_kv_heads,
            .seq_len = seq_len};
  }
  TensorType query() const {
    return F32(num_sequences * seq_len, num_heads * head_width);
  }
  TensorType key() const {
    return F32(num_sequences * seq_len, num_kv_heads * head_width);
  }
  TensorType square() const {
    return {DType::kF32, num_sequences, num_heads, seq_len, seq_len};
  }
};

constexpr AttentionSizes kAttentionSizes[] = {
    {1, 1, 1, 1, 1},   {2, 1, 2, 2, 3},    {2, 4, 4, 2, 3},
    {1, 5, 3, 1, 2},   {1, 31, 2, 2, 17},  {2, 33, 4, 2, 8},
    {1, 33, 2, 1, 65}, {1, 130, 2, 2, 16}, {1, 130, 6, 2, 16},
};

std::vector<OpCase> EmbeddingCases() {
  std::vector<OpCase> cases;
  // Few rows: tokens repeat, so their gradients add up.
  for (auto [rows, vocab, width] : Sizes<3>{
           {1, 1, 1}, {7, 5, 3}, {33, 11, 17}, {31, 257, 65}, {200, 3, 257}}) {
    cases.push_back(
        MakeCase(Op::kEmbedding, {}, {I32(rows), F32(vocab, width)}));
  }
  return cases;
}

std::vector<OpCase> PositionEmbeddingCases() {
  std::vector<OpCase> cases;
  for (auto [num_sequences, seq_len, num_positions, width] :
       Sizes<4>{{1, 1, 1, 1},
                {3, 4, 4, 3},
                {2, 5, 9, 17},
                {3, 31, 31, 65},
                {2, 33, 40, 257}}) {
    cases.push_back(MakeCase(
        Op::kPositionEmbedding, {.seq_len = seq_len},
        {F32(num_sequences * seq_len, width), F32(num_positions, width)}));
  }
  return cases;
}

std::vector<OpCase> LayerNormCases() {
  const OpAttrs attrs = {.epsilon = 1e-5f};
  std::vector<OpCase> cases;
  for (auto [rows, width] :
       Sizes<2>{{1, 1}, {5, 3}, {4, 17}, {33, 65}, {31, 257}, {130, 48}}) {
    cases.push_back(MakeCase(Op::kLayerNorm, attrs,
                             {F32(rows, width), F32(width), F32(width)}));
    cases.push_back(
        MakeCase(Op::kLayerNorm, attrs, {F32(rows, width), F32(width)}));
  }
  return cases;
}

std::vector<OpCase> RmsNormCases() {
  const OpAttrs attrs = {.epsilon = 1e-5f};
  std::vector<OpCase> cases;
  for (auto [rows, width] :
       Sizes<2>{{1, 1}, {5, 3}, {4, 17}, {33, 65}, {31, 257}, {130, 48}}) {
    cases.push_back(
        MakeCase(Op::kRmsNorm, attrs, {F32(rows, width), F32(width)}));
  }
  return cases;
}

std::vector<OpCase> RopeCases() {
  std::vector<OpCase> cases;
  for (auto [num_sequences, seq_len, num_heads, num_kv_heads, head_width] :
       Sizes<5>{{1, 1, 1, 1, 2},
                {2, 4, 4, 2, 6},
                {1, 5, 3, 1, 2},
                {2, 31, 2, 2, 34},
                {1, 33, 4, 1, 130},
                {1, 130, 3, 3, 16}}) {
    for (double theta : {1e4, 5e5}) {
      OpCase op_case =
          MakeCase(Op::kRope,
                   {.num_heads = num_heads,
                    .num_kv_heads = num_kv_heads,
                    .seq_len = seq_len,
                    .rope_theta = theta},
                   {F32(num_sequences * seq_len,
                        (num_heads + 2 * num_kv_heads) * head_width)});
      absl::StrAppend(&op_case.name, " theta ", theta);
      cases.push_back(std::move(op_case));
    }
  }
  // A base below 1 makes angles grow with the pair, here to 1.2e7: more digits
  // than fp32 has, and the largest that the longest sequence could have.
  OpCase far = MakeCase(
      Op::kRope,
      {.num_heads = 2, .num_kv_heads = 1, .seq_len = 31, .rope_theta = 1e-7},
      {F32(31, 4 * 10)});
  far.name += " theta 1e-7";
  cases.push_back(std::move(far));
  return cases;
}

std::vector<OpCase> LinearCases() {
  std::vector<OpCase> cases;
  for (auto [rows, inputs, outputs] : Sizes<3>{{1, 1, 1},
                                               {3, 2, 5},
                                               {4, 17, 3},
                                               {33, 65, 17},
                                               {31, 257, 65},
                                               {65, 3, 257},
                                               {48, 64, 96}}) {
    const TensorType x = F32(rows, inputs), weight = F32(outputs, inputs);
    cases.push_back(MakeCase(Op::kLinear, {}, {x, weight, F32(outputs)}));
    cases.push_back(MakeCase(Op::kLinear, {}, {x, weight}));
  }
  return cases;
}

std::vector<OpCase> AttentionScoresCases() {
  using namespace attention_scores;
  std::vector<OpCase> cases;
  for (const AttentionSizes& sizes : kAttentionSizes) {
    const OpCase dense = MakeCase(Op::kAttentionScores, sizes.attrs(),
                                  {sizes.query(), sizes.key()});
    const int64_t q = sizes.query().dims[1], kv = sizes.key().dims[1];
    cases.push_back(dense);
    cases.push_back(WithViews(dense, q + 2 * kv, {{kQ, 0}, {kK, q}}));
  }
  return cases;
}

std::vector<OpCase> CausalSoftmaxCases() {
  std::vector<OpCase> cases;
  for (const AttentionSizes& sizes : kAttentionSizes) {
    cases.push_back(MakeCase(Op::kCausalSoftmax, {}, {sizes.square()}));
  }
  // exp would overflow without the maximum.
  cases.push_back(WithScale(cases.back(), 100));
  return cases;
}

std::vector<OpCase> AttentionContextCases() {
  using namespace attention_context;
  std::vector<OpCase> cases;
  for (const AttentionSizes& sizes : kAttentionSizes) {
    const OpCase dense = MakeCase(Op::kAttentionContext, sizes.attrs(),
                                  {sizes.square(), sizes.key()});
    const int64_t q = sizes.query().dims[1], kv = sizes.key().dims[1];
    cases.push_back(dense);
    cases.push_back(WithViews(dense, q + 2 * kv, {{kV, q + kv}}));
  }
  return cases;
}

std::vector<OpCase> AttentionCases() {
  using namespace attention;
  std::vector<OpCase> cases;
  for (const AttentionSizes& sizes : kAttentionSizes) {
    const int64_t q = sizes.query().dims[1], kv = sizes.key().dims[1];
    for (float dropout : {0.0f, 0.3f}) {
      OpAttrs attrs = sizes.attrs();
      attrs.dropout = dropout;
      const OpCase dense = MakeCase(Op::kAttention, attrs,
                                    {sizes.query(), sizes.key(), sizes.key()});
      cases.push_back(dense);
      cases.push_back(
          WithViews(dense, q + 2 * kv, {{kQ, 0}, {kK, q}, {kV, q + kv}}));
    }
  }
  // Scores far apart: a running maximum that grows late.
  cases.push_back(WithScale(cases.back(), 4));
  return cases;
}

std::vector<OpCase> GeluCases() {
  std::vector<OpCase> cases;
  for (auto [rows, width] :
       Sizes<2>{{1, 1}, {5, 3}, {4, 17}, {33, 65}, {31, 257}}) {
    cases.push_back(MakeCase(Op::kGelu, {}, {F32(rows, width)}));
  }
  cases.push_back(WithScale(cases[2], 3));
  // tanh saturates.
  cases.push_back(WithScale(cases[3], 20));
  return cases;
}

std::vector<OpCase> ReluCases() {
  std::vector<OpCase> cases;
  for (auto [rows, width] : Sizes<2>{
           {1, 1}, {5, 3}, {4, 17}, {3, 32}, {2, 64}, {33, 65}, {31, 257}}) {
    cases.push_back(MakeCase(Op::kRelu, {}, {F32(rows, width)}));
  }
  return cases;
}

std::vector<OpCase> SwigluCases() {
  std::vector<OpCase> cases;
  for (auto [rows, width] :
       Sizes<2>{{1, 1}, {5, 3}, {4, 17}, {33, 65}, {31, 257}}) {
    cases.push_back(MakeCase(Op::kSwiglu, {}, {F32(rows, 2 * width)}));
  }
  cases.push_back(WithScale(cases[2], 3));
  // The logistic function saturates, its exponential would overflow.
  cases.push_back(WithScale(cases[3], 200));
  return cases;
}

std::vector<OpCase> DropoutCases() {
  std::vector<OpCase> cases;
  for (float dropout : {0.0f, 0.3f}) {
    for (auto [num_sequences, seq_len, width] : Sizes<3>{{1, 1, 1},
                                                         {2, 5, 3},
                                                         {3, 1, 17},
                                                         {2, 33, 65},
                                                         {1, 31, 257},
                                                         {2, 8, 64}}) {
      const OpAttrs attrs = {.seq_len = seq_len, .dropout = dropout};
      cases.push_back(
          MakeCase(Op::kDropout, attrs, {F32(num_sequences * seq_len, width)}));
    }
    for (const AttentionSizes& sizes : kAttentionSizes) {
      OpAttrs attrs = sizes.attrs();
      attrs.dropout = dropout;
      cases.push_back(MakeCase(Op::kDropout, attrs, {sizes.square()}));
    }
  }
  // A chunk that starts within a sequence and ends within the next.
  OpCase chunk =
      MakeCase(Op::kDropout, {.seq_len = 8, .dropout = 0.3f}, {F32(16, 17)});
  chunk.row_offset = 13;
  chunk.name += " row offset 13";
  cases.push_back(chunk);
  return cases;
}

std::vector<OpCase> AddCases() {
  std::vector<OpCase> cases;
  for (auto [rows, width] :
       Sizes<2>{{1, 1}, {5, 3}, {4, 17}, {33, 65}, {31, 257}}) {
    const TensorType type = F32(rows, width);
    cases.push_back(MakeCase(Op::kAdd, {}, {type, type}));
  }
  const TensorType vector = F32(257);
  cases.push_back(MakeCase(Op::kAdd, {}, {vector, vector}));
  return cases;
}

std::vector<OpCase> CrossEntropyCases() {
  const OpAttrs attrs = {.loss_scale = 0.25f};
  std::vector<OpCase> cases;
  for (auto [rows, vocab] :
       Sizes<2>{{1, 1}, {5, 3}, {4, 17}, {33, 65}, {31, 257}}) {
    OpCase plain =
        MakeCase(Op::kCrossEntropy, attrs, {F32(rows, vocab), I32(rows)});
    OpCase padded = plain;
    padded.pad_targets = true;
    padded.name += " padded";
    cases.push_back(std::move(plain));
    cases.push_back(std::move(padded));
  }
  // exp would overflow without the maximum.
  cases.push_back(WithScale(cases.back(), 100));
  return cases;
}

std::vector<OpCase> SumCases() {
  std::vector<OpCase> cases;
  for (int rows : {1, 3, 17, 65, 257, 5000}) {
    cases.push_back(MakeCase(Op::kSum, {}, {F32(rows), {DType::kF64, 1}}));
  }
  return cases;
}

std::vector<OpCase> FillZeroCases() {
  std::vector<OpCase> cases;
  for (const TensorType& type :
       {F32(1), F32(33, 65), I32(17), TensorType(DType::kF64, 1),
        TensorType(DType::kF64, 257)}) {
    cases.push_back(MakeCase(Op::kFillZero, {}, {type}));
  }
  return cases;
}

std::vector<OpCase> SquaredNormCases() {
  std::vector<OpCase> cases;
  // Blocks of 4096 elements: one short, one full, one and a bit, three.
  for (const TensorType& type :
       {F32(1), F32(17), F32(33, 65), F32(4096), F32(4097), F32(3, 4096)}) {
    cases.push_back(MakeCase(Op::kSquaredNorm, {}, {type, {DType::kF64, 1}}));
  }
  // Squares that overflow fp32.
  cases.push_back(WithScale(cases[2], 1e30));
  return cases;
}

std::vector<OpCase> ClipScaleCases() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const TensorType scalar(DType::kF64, 1);
  std::vector<OpCase> cases;
  for (float clip : {0.0f, 1.0f}) {
    for (double total : {0.0, 0.25, 1.0, 16.0, kInfinity, kNan}) {
      OpCase op_case =
          MakeCase(Op::kClipScale, {.clip = clip}, {scalar, scalar, scalar});
      op_case.constants = {{clip_scale::kTotal, total}};
      absl::StrAppend(&op_case.name, " clip ", clip, " total ", total);
      cases.push_back(std::move(op_case));
    }
  }
  return cases;
}

std::vector<OpCase> AdamwCases() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  OpAttrs attrs = {.epsilon = 1e-8f, .beta1 = 0.9f, .beta2 = 0.95f};
  std::vector<OpCase> cases;
  for (float weight_decay : {0.0f, 0.1f}) {
    attrs.weight_decay = weight_decay;
    for (const TensorType& type :
         {F32(1), F32(3), F32(17), F32(33, 65), F32(257)}) {
      for (double scale : {1.0, 0.125, kInfinity, kNan}) {
        OpCase op_case = MakeCase(Op::kAdamw, attrs,
                                  {type, type, type, type, {DType::kF64, 1}});
        op_case.constants = {{adamw::kScale, scale}};
        absl::StrAppend(&op_case.name, " decay ", weight_decay, " scale ",
                        scale);
        cases.push_back(std::move(op_case));
      }
    }
  }
  // The first step: moments are zero, corrections are largest.
  OpCase first = cases[4];
  first.scalars.step = 1;
  first.constants = {{adamw::kScale, 1}, {adamw::kM, 0}, {adamw::kV, 0}};
  first.name += " step 1";
  cases.push_back(std::move(first));
  return cases;
}

// Shapes of every rank; rows of one element, and beyond a piece of one.
const TensorType kEncodedTypes[] = {F32(1),
                                    F32(300),
                                    F32(1, 1),
                                    F32(7, 3),
                                    F32(33, 17),
                                    F32(20, 257),
                                    F32(3, 600),
                                    {DType::kF32, 2, 3, 31},
                                    {DType::kF32, 2, 2, 33, 33}};

std::vector<OpCase> EncodeCases() {
  const TensorType error(DType::kF64, encode::kNumErrors);
  std::vector<OpCase> cases;
  for (const DType result : {DType::kBf16, DType::kF8E4M3}) {
    for (const TensorType& type : kEncodedTypes) {
      OpCase op_case =
          MakeCase(Op::kEncode, {.result = result}, {type, {}, {}, error});
      cases.push_back(WithScale(op_case, 1e-30));
      cases.push_back(WithScale(op_case, 3e4));
      cases.push_back(std::move(op_case));
    }
    OpCase zero =
        MakeCase(Op::kEncode, {.result = result}, {F32(5, 17), {}, {}, error});
    for (const double constant : {0.0, std::numeric_limits<double>::infinity(),
                                  std::numeric_limits<double>::quiet_NaN()}) {
      zero.constants = {{encode::kX, constant}};
      cases.push_back(zero);
      absl::StrAppend(&cases.back().name, " all ", constant);
    }
  }
  return cases;
}

std::vector<OpCase> DecodeCases() {
  std::vector<OpCase> cases;
  for (const DType result : {DType::kF32, DType::kBf16}) {
    for (const TensorType& type : kEncodedTypes) {
      cases.push_back(MakeCase(Op::kDecode, {.result = result},
                               {type.WithDType(DType::kBf16)}));
      cases.push_back(
          MakeCase(Op::kDecode, {.result = result},
                   {type.WithDType(DType::kF8E4M3), encode::ScaleType(type)}));
    }
  }
  return cases;
}

using MakeCases = std::vector<OpCase> (*)();

// In the order of the enum.
constexpr MakeCases kMakeCases[] = {
    EmbeddingCases,
    PositionEmbeddingCases,
    RopeCases,
    LayerNormCases,
    RmsNormCases,
    LinearCases,
    AttentionScoresCases,
    CausalSoftmaxCases,
    AttentionContextCases,
    AttentionCases,
    GeluCases,
    ReluCases,
    SwigluCases,
    DropoutCases,
    AddCases,
    CrossEntropyCases,
    SumCases,
    FillZeroCases,
    SquaredNormCases,
    ClipScaleCases,
    AdamwCases,
    EncodeCases,
    DecodeCases,
};
static_assert(std::size(kMakeCases) == kNumOps, "an op without cases");

// Word `i` of stream `stream` as a number in [0, 1).
double DrawUniform(uint64_t stream, int64_t i) {
  const philox::Block block =
      philox::Draw(philox::Key(42, stream), static_cast<uint64_t>(i / 4), 0, 0);
  return block[i % 4] / 4294967296.0;
}

// Numbers in [-scale, scale], rounded to the type (of fp64: to fp32).
std::vector<double> DrawElements(uint64_t stream, const TensorType& type,
                                 double scale) {
  std::vector<double> elements(type.num_elements());
  for (size_t i = 0; i < elements.size(); ++i) {
    const double element =
        scale * (2 * DrawUniform(stream, static_cast<int64_t>(i)) - 1);
    elements[i] = RoundedTo(type.dtype, static_cast<float>(element));
  }
  return elements;
}

// Number of values that an index may take.
int64_t IndexLimit(const OpCase& op_case) {
  if (op_case.op == Op::kEmbedding) {
    return op_case.types[embedding::kWeight].dims[0];
  }
  EBB_CHECK(op_case.op == Op::kCrossEntropy);
  return op_case.types[cross_entropy::kLogits].dims[1];
}

std::vector<double> DrawIndices(const OpCase& op_case, int slot) {
  const int64_t limit = IndexLimit(op_case);
  std::vector<double> indices(op_case.types[slot].num_elements());
  for (size_t i = 0; i < indices.size(); ++i) {
    indices[i] = std::floor(DrawUniform(slot, static_cast<int64_t>(i)) *
                            static_cast<double>(limit));
    if (op_case.pad_targets && i % 3 == 1) indices[i] = -1;
  }
  if (op_case.pad_targets) indices.back() = -1;
  return indices;
}

}  // namespace

std::vector<OpCase> OpCases(Op op, DType precision) {
  std::vector<OpCase> cases = kMakeCases[static_cast<int>(op)]();
  if (precision == DType::kF32) return cases;
  EBB_CHECK(precision == DType::kBf16);
  for (OpCase& op_case : cases) op_case = InBf16(std::move(op_case));
  return cases;
}

std::vector<std::vector<double>> DrawSlots(const OpCase& op_case) {
  const OpDef& def = GetOpDef(op_case.op);
  std::vector<std::vector<double>> slots(def.num_slots());
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    const TensorType& type = op_case.types[slot];
    switch (def.slots[slot].role) {
      case Role::kIndex:
        slots[slot] = DrawIndices(op_case, slot);
        break;
      case Role::kInput:
      case Role::kState:
        slots[slot] = DrawElements(slot, type, op_case.input_scale);
        break;
      case Role::kParam:
        slots[slot] = DrawElements(slot, type, 1);
        break;
      case Role::kOutput:
      case Role::kAux:
        break;
    }
  }
  if (op_case.op == Op::kAdamw) {
    // The second moment is no negative number.
    for (double& v : slots[adamw::kV]) v = static_cast<float>(v * v);
  }
  for (const auto& [slot, constant] : op_case.constants) {
    for (double& element : slots[slot]) element = constant;
  }
  return slots;
}

std::vector<std::vector<double>> DrawGradients(const OpCase& op_case) {
  const OpDef& def = GetOpDef(op_case.op);
  std::vector<std::vector<double>> grads(def.num_slots());
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    const Role role = def.slots[slot].role;
    if (role == Role::kParam ||
        (role == Role::kOutput && op_case.op != Op::kCrossEntropy)) {
      grads[slot] =
          DrawElements(100 + slot, GradientType(role, op_case.types[slot]), 1);
    }
  }
  return grads;
}

uint32_t KernelGradients(const OpDef& op) {
  uint32_t gradients = 0;
  bool has_output = false;
  for (int slot = 0; slot < op.num_slots(); ++slot) {
    const SlotDef& def = op.slots[slot];
    has_output = has_output || def.role == Role::kOutput;
    if ((def.role == Role::kInput || def.role == Role::kParam) &&
        !def.grad_passes_through) {
      gradients |= Reads(slot);
    }
  }
  return has_output ? gradients : 0;
}

}  // namespace ebb
