// Reference of attention. The fused op is the composition of the unfused ones.
// Letters: B sequences, T tokens, H heads, K key/value heads, W head width.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/ops/attention.h"
#include "kernels/ops/attention_context.h"
#include "kernels/ops/attention_scores.h"
#include "kernels/ops/attention_shape.h"
#include "kernels/ops/causal_softmax.h"
#include "kernels/ops/dropout.h"
#include "kernels/status.h"
#include "kernels/testing/reference_kernels.h"

namespace ebb::reference {
namespace {

// Where head h of query token (b, t) starts in [N, H * W], where the key or
// value head that h reads starts in [N, K * W], and element (b, h, t, s) of
// [B, H, T, T].
struct Index {
  AttentionShape shape;

  int64_t Query(int64_t b, int64_t h, int64_t t) const {
    return ((b * shape.seq_len + t) * shape.num_heads + h) * shape.head_width;
  }
  int64_t Key(int64_t b, int64_t h, int64_t s) const {
    const int64_t g = h / (shape.num_heads / shape.num_kv_heads);
    return ((b * shape.seq_len + s) * shape.num_kv_heads + g) *
           shape.head_width;
  }
  int64_t Score(int64_t b, int64_t h, int64_t t, int64_t s) const {
    return ((b * shape.num_heads + h) * shape.seq_len + t) * shape.seq_len + s;
  }
};

// Calls visit(query, key, score) with the start indices of every pair of
// tokens of every head of every sequence.
template <typename Visit>
void ForEachPair(const AttentionShape& shape, Visit visit) {
  const Index index{shape};
  for (int64_t b = 0; b < shape.num_sequences; ++b) {
    for (int64_t h = 0; h < shape.num_heads; ++h) {
      for (int64_t t = 0; t < shape.seq_len; ++t) {
        for (int64_t s = 0; s < shape.seq_len; ++s) {
          visit(index.Query(b, h, t), index.Key(b, h, s),
                index.Score(b, h, t, s));
        }
      }
    }
  }
}

}  // namespace

void AttentionScoresForward(Call& c) {
  using namespace attention_scores;
  const AttentionShape shape = ShapeFromQuery(c.attrs, c.types[kQ]);
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_width));
  ForEachPair(shape, [&](int64_t query, int64_t key, int64_t score) {
    double product = 0;
    for (int64_t w = 0; w < shape.head_width; ++w) {
      product += c.slots[kQ][query + w] * c.slots[kK][key + w];
    }
    c.slots[kScores][score] = product * scale;
  });
}

void AttentionScoresBackward(Call& c) {
  using namespace attention_scores;
  const AttentionShape shape = c.types[kQ].bound()
                                   ? ShapeFromQuery(c.attrs, c.types[kQ])
                                   : ShapeFromKey(c.attrs, c.types[kK]);
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_width));
  std::fill(c.grads[kQ].begin(), c.grads[kQ].end(), 0);
  std::fill(c.grads[kK].begin(), c.grads[kK].end(), 0);
  ForEachPair(shape, [&](int64_t query, int64_t key, int64_t score) {
    const double dscore = c.grads[kScores][score] * scale;
    for (int64_t w = 0; w < shape.head_width; ++w) {
      if (!c.grads[kQ].empty()) {
        c.grads[kQ][query + w] += dscore * c.slots[kK][key + w];
      }
      if (!c.grads[kK].empty()) {
        c.grads[kK][key + w] += dscore * c.slots[kQ][query + w];
      }
    }
  });
}

void CausalSoftmaxForward(Call& c) {
  using namespace causal_softmax;
  const int64_t seq_len = c.types[kX].dims[3];
  for (int64_t row = 0; row < c.types[kX].num_elements() / seq_len; ++row) {
    const int64_t num_seen = row % seq_len + 1;  // s <= t
    const double* x = &c.slots[kX][row * seq_len];
    double* y = &c.slots[kY][row * seq_len];
    const double max = *std::max_element(x, x + num_seen);
    double sum = 0;
    for (int64_t s = 0; s < num_seen; ++s) sum += std::exp(x[s] - max);
    for (int64_t s = 0; s < seq_len; ++s) {
      y[s] = s < num_seen ? std::exp(x[s] - max) / sum : 0;
    }
  }
}

void CausalSoftmaxBackward(Call& c) {
  using namespace causal_softmax;
  if (c.grads[kX].empty()) return;
  const int64_t seq_len = c.types[kY].dims[3];
  for (int64_t row = 0; row < c.types[kY].num_elements() / seq_len; ++row) {
    const int64_t num_seen = row % seq_len + 1;
    const double* y = &c.slots[kY][row * seq_len];
    const double* dy = &c.grads[kY][row * seq_len];
    double sum = 0;
    for (int64_t s = 0; s < num_seen; ++s) sum += dy[s] * y[s];
    for (int64_t s = 0; s < seq_len; ++s) {
      c.grads[kX][row * seq_len + s] = s < num_seen ? y[s] * (dy[s] - sum) : 0;
    }
  }
}

void AttentionContextForward(Call& c) {
  using namespace attention_context;
  const AttentionShape shape = ShapeFromKey(c.attrs, c.types[kV]);
  std::fill(c.slots[kY].begin(), c.slots[kY].end(), 0);
  ForEachPair(shape, [&](int64_t query, int64_t key, int64_t score) {
    for (int64_t w = 0; w < shape.head_width; ++w) {
      c.slots[kY][query + w] += c.slots[kProbs][score] * c.slots[kV][key + w];
    }
  });
}

void AttentionContextBackward(Call& c) {
  using namespace attention_context;
  const AttentionShape shape = ShapeFromQuery(c.attrs, c.types[kY]);
  std::fill(c.grads[kProbs].begin(), c.grads[kProbs].end(), 0);
  std::fill(c.grads[kV].begin(), c.grads[kV].end(), 0);
  ForEachPair(shape, [&](int64_t query, int64_t key, int64_t score) {
    for (int64_t w = 0; w < shape.head_width; ++w) {
      const double dy = c.grads[kY][query + w];
      if (!c.grads[kProbs].empty()) {
        c.grads[kProbs][score] += dy * c.slots[kV][key + w];
      }
      if (!c.grads[kV].empty()) {
        c.grads[kV][key + w] += dy * c.slots[kProbs][score];
      }
    }
  });
}

namespace {

// The unfused ops that a fused call stands for, after their forward pass.
struct Unfused {
  Call scores, softmax, dropout, context;
};

// Runs `op` on the given values with the attributes and draws of `fused`.
Call RunPart(const Call& fused, Op op, std::vector<TensorType> types,
             std::vector<Elements> slots) {
  const int num_slots = GetOpDef(op).num_slots();
  types.resize(num_slots);
  slots.resize(num_slots);
  EBB_CHECK(GetOpDef(op).infer(fused.attrs, types).ok());
  Call part = {.attrs = fused.attrs,
               .types = std::move(types),
               .slots = std::move(slots),
               .grads = std::vector<Elements>(num_slots),
               .scalars = fused.scalars,
               .value_key = fused.value_key,
               .row_offset = fused.row_offset};
  RunForward(op, part);
  return part;
}

Unfused RunUnfused(const Call& c) {
  using namespace attention;
  Unfused u;
  u.scores = RunPart(c, Op::kAttentionScores, {c.types[kQ], c.types[kK]},
                     {c.slots[kQ], c.slots[kK]});
  const TensorType square = u.scores.types[attention_scores::kScores];
  u.softmax = RunPart(c, Op::kCausalSoftmax, {square},
                      {u.scores.slots[attention_scores::kScores]});
  u.dropout =
      RunPart(c, Op::kDropout, {square}, {u.softmax.slots[causal_softmax::kY]});
  u.context = RunPart(c, Op::kAttentionContext, {square, c.types[kV]},
                      {u.dropout.slots[dropout::kY], c.slots[kV]});
  return u;
}

}  // namespace

void AttentionForward(Call& c) {
  using namespace attention;
  const Unfused u = RunUnfused(c);
  c.slots[kY] = u.context.slots[attention_context::kY];
  const int64_t seq_len = c.attrs.seq_len;
  for (int64_t row = 0; row < c.types[kLse].num_elements(); ++row) {
    const double* scores =
        &u.scores.slots[attention_scores::kScores][row * seq_len];
    const int64_t num_seen = row % seq_len + 1;
    const double max = *std::max_element(scores, scores + num_seen);
    double sum = 0;
    for (int64_t s = 0; s < num_seen; ++s) sum += std::exp(scores[s] - max);
    c.slots[kLse][row] = max + std::log(sum);
  }
}

// The sum over keys of probability times its gradient is taken from y, to which
// it is equal, as the formula says (Dao 2023, section 2.3): with y stored in
// bf16 the two differ by y's rounding.
void AttentionBackward(Call& c) {
  using namespace attention;
  Unfused u = RunUnfused(c);
  const Elements square(u.softmax.types[causal_softmax::kX].num_elements());
  u.context.grads = {square, c.slots[kV], c.grads[kY]};
  AttentionContextBackward(u.context);
  u.dropout.grads = {square, u.context.grads[attention_context::kProbs]};
  DropoutBackward(u.dropout);
  const Elements& probs = u.softmax.slots[causal_softmax::kY];
  const Elements& dprobs = u.dropout.grads[dropout::kX];
  const int64_t seq_len = c.attrs.seq_len, heads = c.attrs.num_heads;
  const int64_t head_width = c.types[kQ].dims[1] / heads;
  Elements dscores = square;
  for (int64_t row = 0; row < c.types[kLse].num_elements(); ++row) {
    const int64_t t = row % seq_len, h = row / seq_len % heads;
    const int64_t b = row / seq_len / heads;
    const int64_t first = ((b * seq_len + t) * heads + h) * head_width;
    double dot = 0;
    for (int64_t w = 0; w < head_width; ++w) {
      dot += c.grads[kY][first + w] * c.slots[kY][first + w];
    }
    for (int64_t s = 0; s <= t; ++s) {
      dscores[row * seq_len + s] =
          probs[row * seq_len + s] * (dprobs[row * seq_len + s] - dot);
    }
  }
  u.scores.grads = {c.slots[kQ], c.slots[kK], dscores};
  AttentionScoresBackward(u.scores);
  if (!c.grads[kQ].empty()) c.grads[kQ] = u.scores.grads[attention_scores::kQ];
  if (!c.grads[kK].empty()) c.grads[kK] = u.scores.grads[attention_scores::kK];
  if (!c.grads[kV].empty()) {
    c.grads[kV] = u.context.grads[attention_context::kV];
  }
}

}  // namespace ebb::reference
