// The head of a sampling program: the logits of one row of the microbatch, the
// one that the executor is told. They stay at a fixed place, beside the totals,
// until the next step.
#include <utility>

#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/fill_zero.h"
#include "kernels/ops/linear.h"
#include "worker/program/drafter.h"

namespace ebb {

void Drafter::WriteSampleHead() {
  const Node& product = graph_.epilogue[graph_.epilogue.size() - 2];
  const ValueRef x = product.slots[linear::kX];
  const ValueRef weight = product.slots[linear::kWeight];
  const Value& logits = graph_.values[product.slots[linear::kY].value];
  const int64_t num_rows = logits.type.dims[0];
  TensorType row_type = logits.type;
  row_type.dims[0] = 1;

  Storage storage;
  storage.key.content = Content::kTotal;
  storage.key.value = product.slots[linear::kY].value;
  storage.name = logits.name;
  storage.bytes = AlignUp(row_type.bytes());
  storage.home = Home::kScalar;
  storage.address = {Arena::kStep, kNumTotals * kAlignment, 0};
  draft_.fixed_step_bytes = kNumTotals * kAlignment + storage.bytes;
  draft_.logits_type = row_type;
  draft_.logits = draft_.Add(std::move(storage));

  DraftBlock begin;
  begin.name = "zero_logits";
  DraftInstruction zero = StartUpdate(Op::kFillZero, logits.name);
  const TensorType whole(DType::kF64, draft_.storages[draft_.logits].bytes /
                                          DTypeBytes(DType::kF64));
  zero.operands = {BindWhole(fill_zero::kX, draft_.logits, whole, true)};
  zero.allocates = {draft_.logits};
  begin.instructions.push_back(std::move(zero));
  draft_.begin.push_back(std::move(begin));

  DraftBlock head;
  head.name = "sample_head";
  head.chunks = true;
  head.one_row = true;
  head.count = static_cast<int>(num_rows);
  DraftOperand row =
      Bind(linear::kX, x, StorageOf(KeyOf(x, kOutsideLayers, 0)));
  row.byte_offset_stride = row.type.bytes() / num_rows;
  row.type.dims[0] = 1;
  std::vector<TensorType> types = SlotTypes(product);
  types[linear::kX] = row.type;
  types[linear::kY] = row_type;
  DraftInstruction forward = Start(product, Phase::kForward, 0);
  forward.operands = {
      row,
      Bind(linear::kWeight, weight,
           StorageOf(KeyOf(weight, kOutsideLayers, 0))),
      BindWhole(linear::kY, draft_.logits, row_type, /*written=*/true)};
  SetCosts(forward, types, 0);
  head.instructions.push_back(std::move(forward));
  draft_.microbatch.push_back(std::move(head));

  // What all rows read ends behind them.
  const Node& loss = graph_.epilogue.back();
  DraftBlock end;
  end.name = "head_end";
  for (const ValueRef& ref : {x, loss.slots[cross_entropy::kTargets]}) {
    DraftInstruction drop;
    drop.kind = InstructionKind::kDrop;
    drop.name = graph_.values[ref.value].name;
    drop.dropped = StorageOf(KeyOf(ref, kOutsideLayers, 0));
    end.instructions.push_back(std::move(drop));
  }
  draft_.microbatch.push_back(std::move(end));
}

}  // namespace ebb
