#include "kernels/cpu/row_loop.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/thread_team.h"
#include "kernels/status.h"

namespace ebb::cpu {
namespace {

// A copy of a stage's call that may be cut.
struct CutCall {
  OpCall call;
  std::array<Tensor, kMostRowSlots> slots, grads;

  explicit CutCall(const RowStage& stage) : call(*stage.call) {
    EBB_CHECK(stage.num_slots <= kMostRowSlots);
    std::copy_n(call.slots, stage.num_slots, slots.begin());
    call.slots = slots.data();
    if (call.grads == nullptr) return;
    std::copy_n(call.grads, stage.num_slots, grads.begin());
    call.grads = grads.data();
  }
  CutCall(const CutCall&) = delete;
  CutCall& operator=(const CutCall&) = delete;

  // Asks for the gradients of these slots no more.
  void Unbind(uint32_t gradients) {
    for (int slot = 0; slot < kMostRowSlots; ++slot) {
      if ((gradients >> slot & 1) != 0) grads[slot] = Tensor();
    }
  }
};

void RunSlice(const RowStage& stage, int64_t begin, int64_t rows,
              std::byte* scratch, Stream stream) {
  CutCall cut(stage);
  cut.call.row_offset += begin;
  cut.Unbind(stage.whole_gradients);
  for (const RowOperand& operand : stage.rows) {
    Tensor& tensor =
        operand.gradient ? cut.grads[operand.slot] : cut.slots[operand.slot];
    if (operand.scratch_offset >= 0) {
      tensor.data = scratch + operand.scratch_offset;
    } else {
      const int64_t row_elements =
          tensor.type.rank == 4 ? tensor.type.dims[3] : tensor.row_stride;
      tensor.data = tensor.as<std::byte>() +
                    begin * row_elements * DTypeBytes(tensor.type.dtype);
    }
    tensor.type = WithLoopRows(tensor.type, rows);
  }
  stage.kernel(cut.call, stream);
}

// The gradients of params alone.
void RunWhole(const RowStage& stage, Stream stream) {
  CutCall cut(stage);
  cut.Unbind(stage.row_gradients);
  stage.kernel(cut.call, stream);
}

}  // namespace

void RunTail(const RowStage& stage, Range rows, Range columns) {
  CutCall cut(stage);
  cut.call.row_offset += rows.begin;
  for (const RowOperand& operand : stage.rows) {
    Tensor& tensor =
        operand.gradient ? cut.grads[operand.slot] : cut.slots[operand.slot];
    EBB_CHECK(tensor.type.rank == 2);
    tensor.data = tensor.as<std::byte>() +
                  (rows.begin * tensor.row_stride + columns.begin) *
                      DTypeBytes(tensor.type.dtype);
    tensor.type.dims[0] = rows.end - rows.begin;
    tensor.type.dims[1] = columns.end - columns.begin;
  }
  stage.kernel(cut.call, nullptr);
}

void RunRowLoop(const RowLoop& loop, Stream stream) {
  for (const RowStage& stage : loop.stages) {
    if (stage.whole_gradients != 0) RunWhole(stage, stream);
  }
  ParallelFor(loop.num_rows, loop.slice_rows, NumThreads(),
              [&](int64_t begin, int64_t end, int thread) {
                std::byte* scratch =
                    loop.scratch + thread * loop.thread_scratch_bytes;
                for (int64_t n = begin; n < end; n += loop.slice_rows) {
                  const int64_t rows = std::min(loop.slice_rows, end - n);
                  for (const RowStage& stage : loop.stages) {
                    RunSlice(stage, n, rows, scratch, stream);
                  }
                }
              });
}

}  // namespace ebb::cpu
