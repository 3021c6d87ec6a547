// Fused attention against the ops that it replaces, on sizes of several tiles
// (the reference's cases are small), and dropout's draws against Philox.
#include "kernels/ops/attention.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops/attention_context.h"
#include "kernels/ops/attention_scores.h"
#include "kernels/ops/causal_softmax.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/op_def.h"
#include "kernels/philox.h"

namespace ebb::cpu {
namespace {

constexpr StepScalars kScalars = {
    .seed = 5, .step = 3, .learning_rate = 0, .first_sequence = 11};
constexpr uint64_t kValueKey = 0x1234567890abcdef;

struct Sizes {
  int64_t num_sequences, seq_len;
  int num_heads, num_kv_heads;
  int64_t head_width;
  float dropout;
};

// A dense value or, with `width` columns from `column`, a view of one.
struct Value {
  TensorType type;
  std::vector<float> data;

  explicit Value(const TensorType& t) : type(t), data(t.num_elements()) {}
  Tensor tensor() { return {data.data(), type, type.row_elements()}; }
  Tensor Columns(int64_t column, int64_t width) {
    return {
        data.data() + column, {DType::kF32, type.dims[0], width}, type.dims[1]};
  }
  void Fill(uint32_t seed) {
    for (float& value : data) {
      seed = seed * 1664525u + 1013904223u;
      value = static_cast<float>(seed >> 8) / (1 << 22) - 2;
    }
  }
};

void RunOp(Op op, const OpAttrs& attrs, std::vector<Tensor> slots,
           std::vector<Tensor> grads) {
  const OpDef& def = GetOpDef(op);
  std::vector<TensorType> types;
  uint32_t bound = 0;
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    const bool has_gradient = !grads.empty() && grads[slot].bound();
    types.push_back(slots[slot].bound() || !has_gradient ? slots[slot].type
                                                         : grads[slot].type);
    if (has_gradient && def.slots[slot].role != Role::kOutput) {
      bound |= uint32_t{1} << slot;
    }
  }
  const Backend backend = DescribeCpu(omp_get_max_threads());
  const int64_t bytes = def.workspace_bytes == nullptr
                            ? 0
                            : def.workspace_bytes(attrs, types, bound, backend);
  void* workspace =
      bytes == 0 ? nullptr : std::aligned_alloc(64, AlignUp(bytes));
  OpCall call = {.attrs = &attrs,
                 .slots = slots.data(),
                 .grads = grads.empty() ? nullptr : grads.data(),
                 .workspace = workspace,
                 .workspace_bytes = bytes,
                 .value_key = kValueKey,
                 .scalars = &kScalars};
  const KernelRow* row = FindKernels(CpuKernelTable(), op, DType::kF32);
  (grads.empty() ? row->forward : row->backward)(call, nullptr);
  std::free(workspace);
}

// Output and gradients of both forms.
struct Outcome {
  Value y, dqkv;
};

class AttentionForms {
 public:
  explicit AttentionForms(const Sizes& sizes)
      : sizes_(sizes),
        rows_(sizes.num_sequences * sizes.seq_len),
        width_(sizes.num_heads * sizes.head_width),
        kv_width_(sizes.num_kv_heads * sizes.head_width),
        qkv_({DType::kF32, rows_, width_ + 2 * kv_width_}),
        dy_({DType::kF32, rows_, width_}) {
    attrs_.num_heads = sizes.num_heads;
    attrs_.num_kv_heads = sizes.num_kv_heads;
    attrs_.seq_len = static_cast<int>(sizes.seq_len);
    attrs_.dropout = sizes.dropout;
    qkv_.Fill(1);
    dy_.Fill(2);
  }

  // Makes one element of q, k or v NaN.
  void Poison(int64_t row, int64_t column) {
    qkv_.data[row * (width_ + 2 * kv_width_) + column] = std::nanf("");
  }

  Outcome Fused() {
    Outcome out = Empty();
    Value lse(
        {DType::kF32, sizes_.num_sequences, sizes_.num_heads, sizes_.seq_len});
    const std::vector<Tensor> slots = {Q(qkv_), K(qkv_), V(qkv_),
                                       out.y.tensor(), lse.tensor()};
    RunOp(Op::kAttention, attrs_, slots, {});
    RunOp(Op::kAttention, attrs_, slots,
          {Q(out.dqkv), K(out.dqkv), V(out.dqkv), dy_.tensor(), Tensor()});
    return out;
  }

  Outcome Unfused() {
    Outcome out = Empty();
    const TensorType square = {DType::kF32, sizes_.num_sequences,
                               sizes_.num_heads, sizes_.seq_len,
                               sizes_.seq_len};
    Value scores(square), probs(square), dropped(square);
    Value dscores(square), dprobs(square), ddropped(square);
    const Tensor none;
    RunOp(Op::kAttentionScores, attrs_, {Q(qkv_), K(qkv_), scores.tensor()},
          {});
    RunOp(Op::kCausalSoftmax, attrs_, {scores.tensor(), probs.tensor()}, {});
    RunOp(Op::kDropout, attrs_, {probs.tensor(), dropped.tensor()}, {});
    RunOp(Op::kAttentionContext, attrs_,
          {dropped.tensor(), V(qkv_), out.y.tensor()}, {});
    RunOp(Op::kAttentionContext, attrs_, {dropped.tensor(), V(qkv_), none},
          {ddropped.tensor(), V(out.dqkv), dy_.tensor()});
    RunOp(Op::kDropout, attrs_, {none, none},
          {dprobs.tensor(), ddropped.tensor()});
    RunOp(Op::kCausalSoftmax, attrs_, {none, probs.tensor()},
          {dscores.tensor(), dprobs.tensor()});
    RunOp(Op::kAttentionScores, attrs_, {Q(qkv_), K(qkv_), none},
          {Q(out.dqkv), K(out.dqkv), dscores.tensor()});
    return out;
  }

 private:
  Outcome Empty() const { return {Value(dy_.type), Value(qkv_.type)}; }
  Tensor Q(Value& value) const { return value.Columns(0, width_); }
  Tensor K(Value& value) const { return value.Columns(width_, kv_width_); }
  Tensor V(Value& value) const {
    return value.Columns(width_ + kv_width_, kv_width_);
  }

  const Sizes sizes_;
  const int64_t rows_, width_, kv_width_;
  OpAttrs attrs_;
  Value qkv_, dy_;
};

double LargestDifference(const Value& a, const Value& b) {
  double largest = 0, difference = 0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(b.data[i])));
    difference = std::max(difference,
                          std::abs(static_cast<double>(a.data[i]) - b.data[i]));
    if (std::isnan(a.data[i])) return 1;
  }
  return difference / largest;
}

class Attention : public testing::TestWithParam<Sizes> {};

TEST_P(Attention, FusedEqualsTheOpsItReplaces) {
  omp_set_num_threads(2);
  AttentionForms forms(GetParam());
  const Outcome fused = forms.Fused();
  const Outcome unfused = forms.Unfused();
  EXPECT_LT(LargestDifference(fused.y, unfused.y), 1e-5);
  EXPECT_LT(LargestDifference(fused.dqkv, unfused.dqkv), 1e-5);
}

TEST_P(Attention, GivesTheSameBitsWhateverTheTeam) {
  AttentionForms forms(GetParam());
  omp_set_num_threads(1);
  const Outcome alone = forms.Fused();
  for (const int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    const Outcome team = forms.Fused();
    EXPECT_EQ(team.y.data, alone.y.data);
    EXPECT_EQ(team.dqkv.data, alone.dqkv.data);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Attention,
                         testing::Values(Sizes{2, 64, 2, 2, 32, 0.0f},
                                         Sizes{1, 65, 2, 1, 64, 0.1f},
                                         Sizes{2, 200, 4, 2, 64, 0.1f},
                                         Sizes{1, 193, 2, 2, 80, 0.3f},
                                         Sizes{1, 256, 3, 1, 128, 0.0f},
                                         Sizes{1, 131, 2, 2, 9, 0.2f}),
                         [](const testing::TestParamInfo<Sizes>& info) {
                           const Sizes& sizes = info.param;
                           return "Tokens" + std::to_string(sizes.seq_len) +
                                  "Heads" + std::to_string(sizes.num_heads) +
                                  "Of" + std::to_string(sizes.num_kv_heads) +
                                  "Width" + std::to_string(sizes.head_width);
                         });

// A value that a program dropped is filled with NaN: reading it must show in
// every result that depends on it, through maxima, clamps and exponentials.
TEST(Poison, PassesThroughAttention) {
  omp_set_num_threads(2);
  const Sizes sizes = {1, 130, 2, 2, 16, 0.0f};
  for (const int64_t column : {int64_t{3}, int64_t{32 + 3}, int64_t{64 + 3}}) {
    AttentionForms forms(sizes);
    forms.Poison(70, column);
    const Outcome fused = forms.Fused();
    const Outcome unfused = forms.Unfused();
    // The last query sees every key; row 70 is its own query.
    const int64_t row = column < 32 ? 70 : 129;
    EXPECT_TRUE(std::isnan(fused.y.data[row * 32 + 3])) << column;
    EXPECT_TRUE(std::isnan(unfused.y.data[row * 32 + 3])) << column;
    EXPECT_TRUE(std::isnan(fused.dqkv.data[70 * 96 + 32 + 3])) << column;
  }
}

TEST(Poison, PassesThroughEveryRow) {
  const float nan = std::nanf("");
  for (const int64_t width : {1, 5, 16, 37}) {
    for (int64_t at = 0; at < width; ++at) {
      Value x({DType::kF32, 1, width}), y(x.type), dx(x.type);
      x.Fill(6);
      x.data[at] = nan;
      RunOp(Op::kGelu, {}, {x.tensor(), y.tensor()}, {});
      RunOp(Op::kGelu, {}, {x.tensor(), Tensor()}, {dx.tensor(), y.tensor()});
      EXPECT_TRUE(std::isnan(y.data[at]));
      EXPECT_TRUE(std::isnan(dx.data[at]));
      std::vector<int32_t> target = {0};
      float loss = 0, lse = 0;
      RunOp(Op::kCrossEntropy, {},
            {x.tensor(),
             {target.data(), {DType::kI32, 1}, 1},
             {&loss, {DType::kF32, 1}, 1},
             {&lse, {DType::kF32, 1}, 1}},
            {});
      EXPECT_TRUE(std::isnan(loss)) << width << " at " << at;
    }
  }
}

// Each element of each sequence takes the word that kernels/philox.h names.
TEST(Dropout, DrawsTheWordsOfPhilox) {
  for (const int64_t width : {1, 3, 17, 64, 1030}) {
    constexpr int64_t kSeqLen = 7, kSequences = 3;
    Value x({DType::kF32, kSequences * kSeqLen, width}), y(x.type);
    x.Fill(4);
    OpAttrs attrs;
    attrs.seq_len = kSeqLen;
    attrs.dropout = 0.3f;
    omp_set_num_threads(2);
    RunOp(Op::kDropout, attrs, {x.tensor(), y.tensor()}, {});
    const uint64_t key = philox::Key(kScalars.seed, kValueKey);
    for (int64_t i = 0; i < x.type.num_elements(); ++i) {
      const int64_t sequence = i / (kSeqLen * width);
      const int64_t element = i % (kSeqLen * width);
      const uint32_t word = philox::Draw(
          key, element / 4,
          static_cast<uint32_t>(kScalars.first_sequence + sequence),
          static_cast<uint32_t>(kScalars.step))[element % 4];
      const bool dropped = word < philox::DropThreshold(0.3f);
      EXPECT_EQ(y.data[i], dropped ? 0.0f : x.data[i] * philox::KeepScale(0.3f))
          << "width " << width << " element " << i;
    }
  }
}

}  // namespace
}  // namespace ebb::cpu
