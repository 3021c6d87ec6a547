// The language-model head, chunked over tokens: product with the vocabulary,
// loss and both gradients of one chunk before the next begins, so the logits of
// a microbatch never exist at once and nothing is computed twice. Evaluation
// runs the forward part.
//
// The chunk depends on graph shapes alone, never on policy or budget: the
// weight gradient accumulates chunk by chunk, and its bits would follow.
#include <algorithm>
#include <utility>

#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/sum.h"
#include "worker/program/drafter.h"

namespace ebb {
namespace {

// Enough chunks that logits are small beside the layers' activations, few
// enough that each product stays long: at least 4, and no chunk of logits above
// 64 MiB, in rows of 16.
constexpr int64_t kFewestChunks = 4;
constexpr int64_t kLargestLogitsBytes = int64_t{64} << 20;
constexpr int64_t kRowMultiple = 16;

int64_t ChunkRows(const TensorType& logits) {
  const int64_t rows = logits.dims[0];
  const int64_t row_bytes = logits.bytes() / rows;
  int64_t chunk = (rows + kFewestChunks - 1) / kFewestChunks;
  chunk =
      std::min(chunk, std::max<int64_t>(1, kLargestLogitsBytes / row_bytes));
  if (chunk > kRowMultiple) chunk = chunk / kRowMultiple * kRowMultiple;
  return chunk;
}

TensorType WithRows(TensorType type, int64_t rows) {
  type.dims[0] = rows;
  return type;
}

}  // namespace

void Drafter::WriteHead(bool backward) {
  const Node& loss = graph_.epilogue.back();
  const TensorType& logits =
      graph_.values[loss.slots[cross_entropy::kLogits].value].type;
  const int64_t rows = ChunkRows(logits);
  const int64_t count = logits.dims[0] / rows;
  WriteHeadBlock("head", 0, rows, static_cast<int>(count), backward, 0);
  if (const int64_t rest = logits.dims[0] - count * rows; rest > 0) {
    WriteHeadBlock("head_rest", count * rows, rest, 1, backward, 1);
  }
  if (backward) return;
  // What all chunks read ends behind the last: nothing else follows.
  DraftBlock end;
  end.name = "head_end";
  const Node& product = graph_.epilogue[graph_.epilogue.size() - 2];
  for (const ValueRef& ref :
       {product.slots[linear::kX], loss.slots[cross_entropy::kTargets]}) {
    DraftInstruction drop;
    drop.kind = InstructionKind::kDrop;
    drop.name = graph_.values[ref.value].name;
    drop.dropped = StorageOf(KeyOf(ref, kOutsideLayers, 0));
    end.instructions.push_back(std::move(drop));
  }
  draft_.microbatch.push_back(std::move(end));
}

void Drafter::WriteHeadBlock(const char* name, int64_t first_row, int64_t rows,
                             int count, bool backward, int version) {
  const Node& product = graph_.epilogue[graph_.epilogue.size() - 2];
  const Node& loss = graph_.epilogue.back();
  DraftBlock block;
  block.name = name;
  block.chunks = true;
  block.count = count;

  // Rows of a value of the whole microbatch.
  const auto bind_rows = [&](int slot, const ValueRef& ref, int storage) {
    DraftOperand operand = Bind(slot, ref, storage);
    const int64_t row_bytes = operand.type.bytes() / operand.type.dims[0];
    operand.type = WithRows(operand.type, rows);
    operand.byte_offset = first_row * row_bytes;
    operand.byte_offset_stride = rows * row_bytes;
    return operand;
  };
  // A value that exists for one chunk only.
  const auto bind_chunk = [&](int slot, const ValueRef& ref, Content content) {
    StorageKey key = KeyOf(ref, kOutsideLayers, 0);
    key.content = content;
    key.version = version;
    int storage = draft_.Find(key);
    const TensorType type = WithRows(graph_.values[ref.value].type, rows);
    if (storage < 0)
      storage = AddStorage(key, type.bytes(), MemoryClass::kLive);
    DraftOperand operand = Bind(slot, ref, storage);
    operand.type = type;
    return operand;
  };
  const auto written = [](DraftOperand operand) {
    operand.written = true;
    return operand;
  };
  const auto gradient = [](DraftOperand operand) {
    operand.gradient = true;
    return operand;
  };
  const auto add = [&](DraftInstruction instruction,
                       const std::vector<TensorType>& types, uint32_t bound) {
    instruction.row_offset_stride = rows;
    SetCosts(instruction, types, bound);
    block.instructions.push_back(std::move(instruction));
  };

  const ValueRef x = product.slots[linear::kX];
  const ValueRef weight = product.slots[linear::kWeight];
  const ValueRef logits = product.slots[linear::kY];
  const ValueRef targets = loss.slots[cross_entropy::kTargets];
  const ValueRef losses = loss.slots[cross_entropy::kLosses];
  const ValueRef lse = loss.slots[cross_entropy::kLse];
  const int x_storage = StorageOf(KeyOf(x, kOutsideLayers, 0));
  const int weight_storage = StorageOf(KeyOf(weight, kOutsideLayers, 0));
  const int targets_storage = StorageOf(KeyOf(targets, kOutsideLayers, 0));

  std::vector<TensorType> product_types = SlotTypes(product);
  product_types[linear::kX] = WithRows(product_types[linear::kX], rows);
  product_types[linear::kY] = WithRows(product_types[linear::kY], rows);
  std::vector<TensorType> loss_types = SlotTypes(loss);
  for (TensorType& type : loss_types) type = WithRows(type, rows);

  DraftInstruction forward = Start(product, Phase::kForward, 0);
  forward.operands = {bind_rows(linear::kX, x, x_storage),
                      Bind(linear::kWeight, weight, weight_storage),
                      written(bind_chunk(linear::kY, logits, Content::kValue))};
  add(std::move(forward), product_types, 0);

  DraftInstruction loss_forward = Start(loss, Phase::kForward, 0);
  loss_forward.operands = {
      bind_chunk(cross_entropy::kLogits, logits, Content::kValue),
      bind_rows(cross_entropy::kTargets, targets, targets_storage),
      written(bind_chunk(cross_entropy::kLosses, losses, Content::kValue)),
      written(bind_chunk(cross_entropy::kLse, lse, Content::kValue))};
  add(std::move(loss_forward), loss_types, 0);

  if (backward) {
    DraftInstruction loss_backward = Start(loss, Phase::kBackward, 0);
    loss_backward.backward_kernel = true;
    loss_backward.operands = {
        bind_chunk(cross_entropy::kLogits, logits, Content::kValue),
        bind_rows(cross_entropy::kTargets, targets, targets_storage),
        bind_chunk(cross_entropy::kLse, lse, Content::kValue),
        written(gradient(
            bind_chunk(cross_entropy::kLogits, logits, Content::kGradient)))};
    add(std::move(loss_backward), loss_types, Reads(cross_entropy::kLogits));
  }
  // Behind both: they may run as one over rows of logits.
  DraftInstruction sum = StartUpdate(Op::kSum, "loss_sum");
  sum.phase = Phase::kForward;
  const TensorType total_type(DType::kF64, 1);
  sum.operands = {bind_chunk(sum::kX, losses, Content::kValue),
                  BindWhole(sum::kTotal, draft_.loss_total, total_type, true)};
  add(std::move(sum), {loss_types[cross_entropy::kLosses], total_type}, 0);

  if (backward) {
    StorageKey x_key = KeyOf(x, kOutsideLayers, 0);
    StorageKey x_gradient_key = x_key;
    x_gradient_key.content = Content::kGradient;
    const int x_gradient = StorageOf(x_gradient_key);
    gradients_[x_key] = x_gradient;
    StorageKey weight_gradient_key = KeyOf(weight, kOutsideLayers, 0);
    weight_gradient_key.content = Content::kGradient;

    DraftOperand weight_gradient = written(gradient(
        Bind(linear::kWeight, weight, StorageOf(weight_gradient_key))));
    weight_gradient.type = GradientType(Role::kParam, weight_gradient.type);

    DraftInstruction product_backward = Start(product, Phase::kBackward, 0);
    product_backward.backward_kernel = true;
    product_backward.operands = {
        bind_rows(linear::kX, x, x_storage),
        Bind(linear::kWeight, weight, weight_storage),
        gradient(bind_chunk(linear::kY, logits, Content::kGradient)),
        written(gradient(bind_rows(linear::kX, x, x_gradient))),
        weight_gradient};
    add(std::move(product_backward), product_types,
        Reads(linear::kX, linear::kWeight));
  }
  draft_.microbatch.push_back(std::move(block));
}

}  // namespace ebb
