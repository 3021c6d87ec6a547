// Runs programs. See executor.cc for the flow of a step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/op_call.h"
#include "kernels/row_loop.h"
#include "worker/program/program.h"
#include "worker/program/step_report.h"
#include "worker/runtime/arena_memory.h"
#include "worker/runtime/batch_source.h"
#include "worker/runtime/memory_meter.h"
#include "worker/runtime/offload.h"
#include "worker/runtime/step_timer.h"

namespace ebb {

struct ExecutorOptions {
  DType precision = DType::kF32;  // of the job: selects the kernels
  // Fills the step arena with NaN at the start of a step, and every buffer when
  // it is freed, so that a read of a dropped value shows.
  bool poison = false;
  OffloadOptions offload = {};
};

// One program bound to its arenas: kernels are resolved and calls are built, so
// that a step allocates nothing. Used by one thread (kernels use their own
// team); a program that offloads has a second one for its copies.
class Executor {
 public:
  // `program`, `device` and the arenas must outlive the executor.
  // Errors: UNIMPLEMENTED lists every op, element type and direction without a
  // kernel; INTERNAL if the arenas are smaller than the program or its use of
  // memory is unsound (CheckStorage).
  static absl::StatusOr<std::unique_ptr<Executor>> Create(
      const Program& program, Device& device, const ArenaView& arenas,
      ExecutorOptions options);

  // Runs the program once: all microbatches, then, in a training program, the
  // update. `scalars` gives seed, step and learning rate. Microbatch m reads
  // the micro_batch sequences from position first_position + m * micro_batch.
  // The report holds all but resident_bytes. `tokens` counts the targets that
  // are not padding, and `loss` is the mean over them (0 without any).
  // Errors: those of `source`; those of the device, with instruction and block.
  // The arenas' contents are then undefined.
  absl::StatusOr<StepReport> RunStep(const StepScalars& scalars,
                                     BatchSource& source,
                                     int64_t first_position);

  const Program& program() const { return program_; }

  // What its copies took so far.
  CopyStream::Made copies_made(bool on_disk) const;

  // Of a sampling program: the row whose logits the next step makes.
  void set_row(int64_t row) { row_ = row; }

 private:
  // Where one tensor of a call points at iteration i:
  // base + address.At(i) + i * stride.
  struct Binding {
    Tensor* tensor;
    Address address;
    std::byte* base;
    int64_t stride;
  };

  // An instruction with all that its execution needs.
  struct Call {
    const Instruction* instruction = nullptr;
    const Block* block = nullptr;
    Kernel kernel = nullptr;
    OpCall call;
    std::vector<Tensor> slots;  // by slot
    std::vector<Tensor> grads;  // by slot; empty in a forward call
    Tensor workspace;           // its data alone is used
    std::vector<Binding> bindings;
    std::vector<uint64_t> value_keys;      // by iteration; empty: draws nothing
    std::vector<RowOperand> row_operands;  // of a row loop
    std::vector<RowStage> stages;  // of the loop that begins here; else empty
    // Of copies and awaits: slots of the copy stream, one or more an iteration.
    std::vector<int32_t> copy_slots;
    int64_t copy_slots_an_iteration = 0;

    std::span<const int32_t> CopySlots(int64_t iteration) const {
      return std::span(copy_slots)
          .subspan(iteration * copy_slots_an_iteration,
                   copy_slots_an_iteration);
    }
  };

  Executor(const Program& program, Device& device, const ArenaView& arenas,
           ExecutorOptions options);

  // Building.
  absl::Status ResolveKernels();
  void MakeCopyStream();
  void AddCopySlots(const Block& block, const Instruction& instruction,
                    const Operand& operand, std::vector<CopySlot>& slots);
  void BuildCalls();
  void BuildCall(const Block& block, const Instruction& instruction,
                 Call& call);
  static void BuildRows(Call& call);
  static void BuildLoop(std::vector<Call>& calls, size_t first);
  void Bind(const Block& block, const Operand& operand, Tensor& tensor,
            Call& call);
  std::byte* At(const Address& address, int64_t iteration) const;
  void BindCopySlots(const Block& block, const Instruction& instruction,
                     Call& call) const;

  // Running.
  absl::Status RunProgram(BatchSource& source, int64_t first_position);
  void BeginStep(const StepScalars& scalars);
  absl::Status RunBlocks(int begin, int end, BatchSource& source,
                         int64_t position);
  absl::Status RunCall(std::vector<Call>& calls, size_t n, int64_t iteration,
                       BatchSource& source, int64_t position);
  void Prepare(Call& call, int64_t iteration);
  absl::Status Launch(std::vector<Call>& calls, size_t n, int64_t iteration);
  absl::Status LoadBatch(Call& call, BatchSource& source, int64_t position);
  void BeginCopy(Call& call, int64_t iteration);
  void EnterBuffers(const Call& call);
  void LeaveBuffers(const Call& call, int64_t iteration);
  absl::StatusOr<StepReport> FinishStep();
  std::vector<EncodeError> EncodeErrorsOfStep() const;
  // `value` is there after the device's next Synchronize.
  void CopyScalar(const Address& address, double& value);
  CopiedBytes BytesCopied() const;

  const Program& program_;
  Device& device_;
  const ArenaView arenas_;
  const ExecutorOptions options_;
  bool has_update_ = false;  // a training program: there is a gradient norm

  std::vector<std::vector<Call>> calls_;  // by block, by instruction
  std::vector<int32_t> tokens_;           // host copies of a microbatch's batch
  std::vector<int32_t> targets_;
  std::vector<double> encode_sums_;  // of Program::encode_errors

  int64_t row_ = 0;

  // Of the step that runs.
  StepScalars scalars_;
  MemoryMeter meter_;
  StepTimer timer_;
  int64_t num_targets_ = 0;
  double flops_ = 0;
  double recompute_flops_ = 0;
  CopiedBytes copied_before_;  // when it began

  // Microbatches run so far: what is offloaded in one comes back in the same.
  int64_t generation_ = 0;
  int64_t num_updates_ = 0;  // that are done; of a training program
  std::map<std::pair<Arena, int64_t>, int32_t> slot_at_;  // by offset
  std::unique_ptr<CopyStream> copies_;  // null: the program has no copies
};

}  // namespace ebb
