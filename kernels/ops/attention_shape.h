// Sizes that the attention ops share, and their checks.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/ops/op_def.h"

namespace ebb {

struct AttentionShape {
  int64_t num_sequences = 0;  // B
  int64_t seq_len = 0;        // T
  int64_t num_heads = 0;      // H
  int64_t num_kv_heads = 0;   // K
  int64_t head_width = 0;     // W
  DType dtype = DType::kF32;  // of queries, keys, values and scores

  int64_t rows() const { return num_sequences * seq_len; }        // N
  int64_t width() const { return num_heads * head_width; }        // D
  int64_t kv_width() const { return num_kv_heads * head_width; }  // K * W
  int64_t num_scores() const {  // the full square of every head
    return num_sequences * num_heads * seq_len * seq_len;
  }
  // FLOPs of one product over the full square: scores, context or one of their
  // gradients.
  int64_t product_flops() const { return 2 * num_scores() * head_width; }

  TensorType QueryType() const { return {dtype, rows(), width()}; }
  TensorType KeyType() const { return {dtype, rows(), kv_width()}; }
  TensorType ScoresType() const {
    return {dtype, num_sequences, num_heads, seq_len, seq_len};
  }
};

// Returns the sizes, given the type of queries or outputs [N, D]. `type` must
// have passed infer.
AttentionShape ShapeFromQuery(const OpAttrs& attrs, const TensorType& type);
// The same from keys or values [N, K * W].
AttentionShape ShapeFromKey(const OpAttrs& attrs, const TensorType& type);

// Checks num_heads, num_kv_heads and seq_len. Errors: INVALID_ARGUMENT.
absl::Status CheckHeads(const OpDef& op, const OpAttrs& attrs);
// Checks that `slot` is an activation [N, num_heads * W], N a multiple of
// seq_len.
absl::Status CheckHeadRows(const OpDef& op, const OpAttrs& attrs, Types types,
                           int slot, int num_heads);

}  // namespace ebb
