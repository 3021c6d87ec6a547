// Scratch of the kernels that need some.
#include "kernels/ops/workspace.h"

#include "kernels/ops/attention.h"
#include "kernels/ops/attention_context.h"
#include "kernels/ops/attention_scores.h"
#include "kernels/ops/attention_shape.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/squared_norm.h"

namespace ebb {
namespace {

// Packed copies that a matrix product of one thread may hold: blocks of the
// two operands and of the accumulator, far above any cache level.
constexpr int64_t kProductBytesPerThread = int64_t{1} << 20;

// Copies of all three matrices of a product (m x k) (k x n), and packing.
int64_t ProductBytes(int64_t m, int64_t n, int64_t k, const Backend& backend) {
  return AlignUp(m * k * 4) + AlignUp(k * n * 4) + AlignUp(m * n * 4) +
         kProductBytesPerThread * backend.threads;
}

}  // namespace

int64_t LinearWorkspaceBytes(const OpAttrs&, Types types, uint32_t,
                             const Backend& backend) {
  const TensorType& weight = types[linear::kWeight];
  return ProductBytes(types[linear::kX].dims[0], weight.dims[0], weight.dims[1],
                      backend);
}

int64_t AttentionScoresWorkspaceBytes(const OpAttrs& attrs, Types types,
                                      uint32_t, const Backend& backend) {
  const AttentionShape shape =
      ShapeFromQuery(attrs, types[attention_scores::kQ]);
  return backend.threads *
         ProductBytes(shape.seq_len, shape.seq_len, shape.head_width, backend);
}

int64_t AttentionContextWorkspaceBytes(const OpAttrs& attrs, Types types,
                                       uint32_t, const Backend& backend) {
  const AttentionShape shape =
      ShapeFromKey(attrs, types[attention_context::kV]);
  return backend.threads *
         ProductBytes(shape.seq_len, shape.seq_len, shape.head_width, backend);
}

int64_t AttentionWorkspaceBytes(const OpAttrs& attrs, Types types, uint32_t,
                                const Backend& backend) {
  const AttentionShape shape = ShapeFromQuery(attrs, types[attention::kQ]);
  // Row sums of dy * y, then per thread one head's operands and their
  // gradients, and tiles.
  return AlignUp(shape.rows() * shape.num_heads * 4) +
         backend.threads * (8 * AlignUp(shape.seq_len * shape.head_width * 4) +
                            kProductBytesPerThread);
}

int64_t LayerNormWorkspaceBytes(const OpAttrs&, Types types, uint32_t bound,
                                const Backend& backend) {
  if (bound == 0) return 0;
  // Partial sums of both parameter gradients.
  return 2 * backend.threads * AlignUp(types[layer_norm::kX].dims[1] * 4);
}

int64_t EmbeddingWorkspaceBytes(const OpAttrs&, Types types, uint32_t bound,
                                const Backend&) {
  if (bound == 0) return 0;
  // Rows in order of their token.
  return 2 * AlignUp(types[embedding::kTokens].num_elements() * 4) +
         AlignUp((types[embedding::kWeight].dims[0] + 1) * 4);
}

int64_t SquaredNormWorkspaceBytes(const OpAttrs&, Types types, uint32_t,
                                  const Backend&) {
  // One double a block of 4096 elements.
  return AlignUp((types[squared_norm::kX].num_elements() + 4095) / 4096 * 8);
}

}  // namespace ebb
