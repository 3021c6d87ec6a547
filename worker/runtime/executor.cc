// How a step runs. Read this file first: everything else in Ebb exists to make
// the list that it walks.
//
//   RunStep
//     BeginStep                     empty the step arena, start the clock
//     RunBlocks [0, begin)          clear gradients and totals
//     for every microbatch
//       RunBlocks [begin, end)      load, forward, loss, backward
//     RunBlocks [end, ...)          gradient norm, clip, update
//     FinishStep                    read loss and norm, report
//
//   RunBlocks: every block, every iteration i (a layer, or a chunk of the
//   head), every instruction: RunCall
//
//   RunCall
//     EnterBuffers                  what the instruction allocates is in use
//     Launch | LoadBatch | begin a copy | await copies | nothing (drop)
//     LeaveBuffers                  what it frees is not; poison it
//
//   A row loop (worker/program/fuse.h) is launched whole by its first
//   instruction; the others only keep the books.
//
// There is no decision here. Which values are kept, offloaded, dropped and
// computed again, where every byte lies and what waits for which copy was
// settled when the program was made; a recomputed op and a copy are
// instructions like any other. So the same few lines run
// every policy, and a policy cannot change a bit of the result.
//
// Before the first step Create() proves the program's use of memory on paper
// (storage_check.h), finds every kernel, and builds every call: running an
// instruction is filling in pointers (base + i * stride) and calling a
// function. Memory and FLOPs are counted from the instructions as they run,
// never taken from the plan.
#include "worker/runtime/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "kernels/kernel_table.h"
#include "kernels/ops/encode.h"
#include "kernels/ops/op_def.h"
#include "kernels/status.h"
#include "worker/model/graph.h"
#include "worker/runtime/storage_check.h"

namespace ebb {
namespace {

// All bits set: NaN in every floating-point type.
constexpr int kPoisonByte = 0xFF;

// Null if the backend has none.
Kernel FindKernel(const KernelTable& table, const Instruction& instruction,
                  DType precision) {
  const KernelRow* const row = FindKernels(table, instruction.op, precision);
  if (row == nullptr) return nullptr;
  return instruction.backward_kernel ? row->backward : row->forward;
}

std::string DescribePlace(const Instruction& instruction, const Block& block,
                          int64_t iteration) {
  const int layer = block.LayerOf(iteration, instruction.layer_offset);
  return absl::StrCat("instruction ", InstanceName(instruction.name, layer),
                      " of block ", block.name);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(
    const Program& program, Device& device, const ArenaView& arenas,
    ExecutorOptions options) {
  if (program.state_bytes > arenas.state_bytes ||
      program.step_bytes > arenas.step_bytes ||
      program.host_bytes > arenas.host_bytes ||
      program.disk_bytes > arenas.disk_bytes ||
      program.host_state_bytes > arenas.host_state_bytes ||
      program.disk_state_bytes > arenas.disk_state_bytes) {
    return absl::InternalError(absl::StrCat(
        "arenas are smaller than the program: state ", arenas.state_bytes,
        " of ", program.state_bytes, " bytes, step ", arenas.step_bytes, " of ",
        program.step_bytes, ", host ", arenas.host_bytes, " of ",
        program.host_bytes, ", disk ", arenas.disk_bytes, " of ",
        program.disk_bytes, ", state in host memory ", arenas.host_state_bytes,
        " of ", program.host_state_bytes, ", on disk ", arenas.disk_state_bytes,
        " of ", program.disk_state_bytes));
  }
  EBB_RETURN_IF_ERROR(CheckStorage(program, device.backend()));
  std::unique_ptr<Executor> executor(
      new Executor(program, device, arenas, options));
  EBB_RETURN_IF_ERROR(executor->ResolveKernels());
  executor->MakeCopyStream();
  executor->BuildCalls();
  return executor;
}

Executor::Executor(const Program& program, Device& device,
                   const ArenaView& arenas, ExecutorOptions options)
    : program_(program),
      device_(device),
      arenas_(arenas),
      options_(options),
      tokens_(program.micro_batch * program.seq_len),
      targets_(program.micro_batch * program.seq_len),
      encode_sums_(program.encode_errors.values.size() *
                   program.encode_errors.num_layers * encode::kNumErrors),
      meter_(program, arenas.state_bytes + arenas.step_bytes) {}

absl::Status Executor::ResolveKernels() {
  std::set<std::string> missing;
  for (const Block& block : program_.blocks) {
    std::vector<Call>& calls = calls_.emplace_back(block.instructions.size());
    for (size_t n = 0; n < calls.size(); ++n) {
      const Instruction& instruction = block.instructions[n];
      if (instruction.kind != InstructionKind::kCompute) continue;
      calls[n].kernel =
          FindKernel(device_.kernels(), instruction, options_.precision);
      if (calls[n].kernel == nullptr) {
        missing.insert(absl::StrCat(
            GetOpDef(instruction.op).name, " ", DTypeName(options_.precision),
            instruction.backward_kernel ? " backward" : " forward"));
      }
      has_update_ = has_update_ || instruction.op == Op::kClipScale;
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "the ", device_.backend().kind,
      " backend has no kernels for: ", absl::StrJoin(missing, ", ")));
}

// A slot for every place off the device, named as what lies there.
void Executor::MakeCopyStream() {
  std::vector<CopySlot> slots;
  for (const Block& block : program_.blocks) {
    for (const Instruction& instruction : block.instructions) {
      if (instruction.kind == InstructionKind::kOffload) {
        AddCopySlots(block, instruction, instruction.operands[1], slots);
      } else if (instruction.kind == InstructionKind::kPrefetch) {
        AddCopySlots(block, instruction, instruction.operands[0], slots);
      }
    }
  }
  if (slots.empty()) return;
  copies_ =
      std::make_unique<CopyStream>(device_, std::move(slots), options_.offload);
}

void Executor::AddCopySlots(const Block& block, const Instruction& instruction,
                            const Operand& operand,
                            std::vector<CopySlot>& slots) {
  const Buffer& place = block.buffers[operand.buffer];
  const Arena arena = place.address.arena;
  for (int64_t i = 0; i < block.count; ++i) {
    if (!block.Runs(instruction, i)) continue;
    const int64_t offset = place.address.At(i);
    const bool is_new =
        slot_at_.emplace(std::pair(arena, offset), slots.size()).second;
    if (!is_new) continue;
    CopySlot& slot = slots.emplace_back();
    slot.name = InstanceName(place.name, block.LayerOf(i, place.layer_offset));
    slot.holds_state = HoldsState(arena);
    if (IsOnDisk(arena)) {
      slot.disk = arena == Arena::kDisk ? arenas_.disk : arenas_.disk_state;
      slot.disk_offset = offset;
    } else {
      slot.host = arenas_.At(arena) + offset;
    }
  }
}

void Executor::BuildCalls() {
  for (size_t b = 0; b < calls_.size(); ++b) {
    const Block& block = program_.blocks[b];
    for (size_t n = 0; n < calls_[b].size(); ++n) {
      BuildCall(block, block.instructions[n], calls_[b][n]);
    }
    for (size_t n = 0; n < calls_[b].size(); ++n) {
      if (n + 1 < calls_[b].size() && !block.instructions[n].continues &&
          block.instructions[n + 1].continues) {
        BuildLoop(calls_[b], n);
      }
    }
  }
}

void Executor::BuildCall(const Block& block, const Instruction& instruction,
                         Call& call) {
  call.instruction = &instruction;
  call.block = &block;
  if (instruction.kind == InstructionKind::kDrop) return;
  if (IsCopy(instruction.kind)) BindCopySlots(block, instruction, call);
  if (instruction.kind == InstructionKind::kAwait) return;

  size_t num_slots = 0;
  for (const Operand& operand : instruction.operands) {
    num_slots = std::max(num_slots, static_cast<size_t>(operand.slot) + 1);
  }
  if (instruction.kind == InstructionKind::kCompute) {
    num_slots = GetOpDef(instruction.op).slots.size();
  }
  call.slots.resize(num_slots);
  if (instruction.backward_kernel) call.grads.resize(num_slots);
  for (const Operand& operand : instruction.operands) {
    // The copy stream knows the places off the device by their slots.
    if (IsCopy(instruction.kind) &&
        IsOffDevice(block.buffers[operand.buffer].address.arena)) {
      continue;
    }
    auto& tensors = operand.gradient ? call.grads : call.slots;
    Bind(block, operand, tensors[operand.slot], call);
  }

  call.call.attrs = &instruction.attrs;
  call.call.slots = call.slots.data();
  call.call.grads = call.grads.empty() ? nullptr : call.grads.data();
  call.call.scalars = &scalars_;
  if (instruction.workspace >= 0) {
    const Address& address = block.buffers[instruction.workspace].address;
    call.bindings.push_back(
        {&call.workspace, address, arenas_.At(address.arena), 0});
    call.call.workspace_bytes = WorkspaceBytes(instruction, device_.backend());
  }
  if (!instruction.value_name.empty()) {
    for (int64_t i = 0; i < block.count; ++i) {
      call.value_keys.push_back(ValueKey(
          instruction.value_name, block.LayerOf(i, instruction.layer_offset)));
    }
  }
}

// Which operands a row loop or a product with a tail cuts.
void Executor::BuildRows(Call& call) {
  const Instruction& instruction = *call.instruction;
  for (const Operand& operand : instruction.operands) {
    if (!HasSlot(GetOpDef(instruction.op).row_slots, operand.slot)) continue;
    call.row_operands.push_back(
        {operand.slot, operand.gradient, operand.scratch_offset});
  }
}

void Executor::BuildLoop(std::vector<Call>& calls, size_t first) {
  for (size_t n = first; n < calls.size(); ++n) {
    if (n > first && !calls[n].instruction->continues) break;
    BuildRows(calls[n]);
    RowStage stage;
    stage.kernel = calls[n].kernel;
    stage.call = &calls[n].call;
    stage.num_slots = static_cast<int>(calls[n].slots.size());
    stage.rows = calls[n].row_operands;
    const uint32_t row_slots = GetOpDef(calls[n].instruction->op).row_slots;
    for (const Operand& operand : calls[n].instruction->operands) {
      if (!operand.gradient || !operand.written) continue;
      (HasSlot(row_slots, operand.slot) ? stage.row_gradients
                                        : stage.whole_gradients) |=
          Reads(operand.slot);
    }
    calls[first].stages.push_back(stage);
  }
  if (calls[first].instruction->slice_rows == 0) {
    calls[first].call.tail = &calls[first].stages.back();
  }
}

void Executor::Bind(const Block& block, const Operand& operand, Tensor& tensor,
                    Call& call) {
  tensor.type = operand.type;
  tensor.row_stride = operand.row_stride;
  if (operand.buffer < 0) return;  // scratch of a row loop
  const Address& address = block.buffers[operand.buffer].address;
  call.bindings.push_back({&tensor, address,
                           arenas_.At(address.arena) + operand.byte_offset,
                           operand.byte_offset_stride});
}

void Executor::BindCopySlots(const Block& block, const Instruction& instruction,
                             Call& call) const {
  for (int64_t i = 0; i < block.count; ++i) {
    for (const Operand& operand : instruction.operands) {
      const Address& address = block.buffers[operand.buffer].address;
      if (!IsOffDevice(address.arena)) continue;
      const auto slot = slot_at_.find({address.arena, address.At(i)});
      EBB_CHECK(slot != slot_at_.end() || !block.Runs(instruction, i));
      call.copy_slots.push_back(slot == slot_at_.end() ? 0 : slot->second);
    }
  }
  call.copy_slots_an_iteration =
      static_cast<int64_t>(call.copy_slots.size()) / block.count;
}

std::byte* Executor::At(const Address& address, int64_t iteration) const {
  return arenas_.At(address.arena) + address.At(iteration);
}

absl::StatusOr<StepReport> Executor::RunStep(const StepScalars& scalars,
                                             BatchSource& source,
                                             int64_t first_position) {
  BeginStep(scalars);
  if (const absl::Status status = RunProgram(source, first_position);
      !status.ok()) {
    // Nothing writes to the arenas when this returns.
    if (copies_ != nullptr) copies_->Drain();
    return status;
  }
  return FinishStep();
}

absl::Status Executor::RunProgram(BatchSource& source, int64_t first_position) {
  const int num_blocks = static_cast<int>(program_.blocks.size());
  EBB_RETURN_IF_ERROR(RunBlocks(0, program_.begin_microbatch, source, 0));
  for (int64_t m = 0; m < program_.num_microbatches; ++m) {
    scalars_.first_sequence = m * program_.micro_batch;
    ++generation_;
    EBB_RETURN_IF_ERROR(RunBlocks(program_.begin_microbatch,
                                  program_.end_microbatch, source,
                                  first_position + scalars_.first_sequence));
  }
  return RunBlocks(program_.end_microbatch, num_blocks, source, 0);
}

CopyStream::Made Executor::copies_made(bool on_disk) const {
  return copies_ == nullptr ? CopyStream::Made() : copies_->made(on_disk);
}

CopiedBytes Executor::BytesCopied() const {
  const CopyStream::Made host = copies_made(/*on_disk=*/false);
  const CopyStream::Made disk = copies_made(/*on_disk=*/true);
  return {.to_host = host.bytes_out,
          .from_host = host.bytes_back,
          .to_disk = disk.bytes_out,
          .from_disk = disk.bytes_back};
}

void Executor::BeginStep(const StepScalars& scalars) {
  timer_.Start();
  scalars_ = scalars;
  meter_.Reset();
  num_targets_ = 0;
  flops_ = 0;
  recompute_flops_ = 0;
  copied_before_ = BytesCopied();
  if (options_.poison) {
    device_.Fill(arenas_.step, kPoisonByte, program_.step_bytes, nullptr);
    if (program_.host_bytes > 0) {
      std::memset(arenas_.host, kPoisonByte, program_.host_bytes);
    }
  }
}

absl::Status Executor::RunBlocks(int begin, int end, BatchSource& source,
                                 int64_t position) {
  for (int b = begin; b < end; ++b) {
    const Block& block = program_.blocks[b];
    for (int64_t k = 0; k < block.count; ++k) {
      if (block.one_row && k != row_) continue;
      const int64_t i = block.descending ? block.count - 1 - k : k;
      for (size_t n = 0; n < calls_[b].size(); ++n) {
        if (!block.Runs(block.instructions[n], i)) continue;
        if (const absl::Status status =
                RunCall(calls_[b], n, i, source, position);
            !status.ok()) {
          return Annotate(status,
                          DescribePlace(block.instructions[n], block, i));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::RunCall(std::vector<Call>& calls, size_t n,
                               int64_t iteration, BatchSource& source,
                               int64_t position) {
  Call& call = calls[n];
  const Instruction& instruction = *call.instruction;
  timer_.Enter(StepTimer::PartOf(instruction.phase));
  EnterBuffers(call);
  switch (instruction.kind) {
    case InstructionKind::kCompute:
      EBB_RETURN_IF_ERROR(Launch(calls, n, iteration));
      break;
    case InstructionKind::kLoadBatch:
      Prepare(call, iteration);
      EBB_RETURN_IF_ERROR(LoadBatch(call, source, position));
      break;
    case InstructionKind::kDrop:
      break;
    case InstructionKind::kOffload:
    case InstructionKind::kPrefetch:
      BeginCopy(call, iteration);
      break;
    case InstructionKind::kAwait:
      timer_.Enter(StepTimer::Part::kOffloadWait);
      EBB_RETURN_IF_ERROR(copies_->Await(call.CopySlots(iteration)));
      break;
  }
  LeaveBuffers(call, iteration);
  return absl::OkStatus();
}

// Fills in what differs between iterations.
void Executor::Prepare(Call& call, int64_t iteration) {
  const Instruction& instruction = *call.instruction;
  for (const Binding& binding : call.bindings) {
    binding.tensor->data = binding.base + binding.address.At(iteration) +
                           iteration * binding.stride;
  }
  call.call.workspace = call.workspace.data;
  call.call.row_offset =
      instruction.row_offset + iteration * instruction.row_offset_stride;
  if (!call.value_keys.empty()) {
    call.call.value_key = call.value_keys[iteration];
  }
}

absl::Status Executor::Launch(std::vector<Call>& calls, size_t n,
                              int64_t iteration) {
  Call& call = calls[n];
  const Instruction& instruction = *call.instruction;
  if (call.stages.empty()) {
    if (!instruction.continues) {
      Prepare(call, iteration);
      EBB_RETURN_IF_ERROR(device_.Launch(call.kernel, call.call, nullptr));
    }
  } else {
    for (size_t s = 0; s < call.stages.size(); ++s) {
      Prepare(calls[n + s], iteration);
    }
    EBB_RETURN_IF_ERROR(
        instruction.slice_rows == 0
            ? device_.Launch(call.kernel, call.call, nullptr)
            : device_.LaunchRows(
                  {.stages = call.stages,
                   .num_rows = instruction.loop_rows,
                   .slice_rows = instruction.slice_rows,
                   .scratch = call.workspace.as<std::byte>(),
                   .thread_scratch_bytes = instruction.thread_scratch_bytes},
                  nullptr));
  }
  // FLOPs are those of the model: the update is not part of it.
  if (instruction.phase == Phase::kUpdate) return absl::OkStatus();
  flops_ += instruction.flops;
  recompute_flops_ += instruction.recompute_flops;
  return absl::OkStatus();
}

absl::Status Executor::LoadBatch(Call& call, BatchSource& source,
                                 int64_t position) {
  timer_.Enter(StepTimer::Part::kDataWait);
  EBB_RETURN_IF_ERROR(source.Fill(position, tokens_, targets_));
  num_targets_ += std::count_if(targets_.begin(), targets_.end(),
                                [](int32_t target) { return target != -1; });
  const int64_t bytes = static_cast<int64_t>(tokens_.size() * sizeof(int32_t));
  device_.CopyToDevice(call.slots[0].data, tokens_.data(), bytes, nullptr);
  device_.CopyToDevice(call.slots[1].data, targets_.data(), bytes, nullptr);
  // The host copies are filled anew for the next microbatch.
  return device_.Synchronize();
}

void Executor::BeginCopy(Call& call, int64_t iteration) {
  Prepare(call, iteration);
  const Instruction& instruction = *call.instruction;
  const int64_t bytes = instruction.operands[0].type.bytes();
  const int slot = call.CopySlots(iteration)[0];
  const bool is_offload = instruction.kind == InstructionKind::kOffload;
  const Operand& off_device = instruction.operands[is_offload ? 1 : 0];
  // State comes as the update before left it.
  const int64_t generation =
      !HoldsState(call.block->buffers[off_device.buffer].address.arena)
          ? generation_
      : is_offload ? num_updates_ + 1
                   : num_updates_;
  if (is_offload) {
    copies_->BeginOffload(slot, call.slots[0].as<std::byte>(), bytes,
                          generation);
  } else {
    copies_->BeginPrefetch(slot, call.slots[1].as<std::byte>(), bytes,
                           generation);
  }
}

void Executor::EnterBuffers(const Call& call) {
  const std::vector<Buffer>& buffers = call.block->buffers;
  for (const int32_t b : call.instruction->allocates) meter_.Enter(buffers[b]);
  for (const Instruction::Replace& replace : call.instruction->replaces) {
    meter_.Leave(buffers[replace.old_buffer]);
    meter_.Enter(buffers[replace.new_buffer]);
  }
  meter_.Observe();
}

void Executor::LeaveBuffers(const Call& call, int64_t iteration) {
  for (const int32_t b : call.instruction->frees) {
    const Buffer& buffer = call.block->buffers[b];
    meter_.Leave(buffer);
    if (!options_.poison || IsOnDisk(buffer.address.arena)) continue;
    std::byte* const memory = At(buffer.address, iteration);
    if (buffer.address.arena == Arena::kHost) {
      std::memset(memory, kPoisonByte, buffer.bytes);
    } else {
      device_.Fill(memory, kPoisonByte, buffer.bytes, nullptr);
    }
  }
}

absl::StatusOr<StepReport> Executor::FinishStep() {
  double loss_total = 0;
  double norm = 0;
  CopyScalar(program_.loss_total, loss_total);
  if (has_update_) CopyScalar(program_.gradient_norm, norm);
  if (!encode_sums_.empty()) {
    device_.CopyToHost(
        encode_sums_.data(), At(program_.encode_errors.address, 0),
        static_cast<int64_t>(encode_sums_.size() * sizeof(double)), nullptr);
  }
  EBB_RETURN_IF_ERROR(device_.Synchronize());
  timer_.Stop();
  if (has_update_) ++num_updates_;

  StepReport report;
  report.step = scalars_.step;
  report.loss = num_targets_ > 0 ? loss_total / num_targets_ : 0;
  report.gradient_norm = norm;
  report.learning_rate = scalars_.learning_rate;
  report.tokens = num_targets_;
  report.duration_seconds = timer_.duration_seconds();
  report.model_flops = flops_ - recompute_flops_;
  report.recompute_flops = recompute_flops_;
  report.skipped = !std::isfinite(norm);
  report.memory = meter_.Peak();
  report.memory[MemoryClass::kRuntime] = device_.backend().runtime_bytes;
  report.saved_bytes = meter_.saved_bytes();
  report.host_bytes = meter_.host_bytes();
  report.disk_bytes = meter_.disk_bytes();
  // A program awaits every copy that it begins.
  report.copied = BytesCopied() - copied_before_;
  report.phases = timer_.phases();
  report.encode_errors = EncodeErrorsOfStep();
  return report;
}

std::vector<EncodeError> Executor::EncodeErrorsOfStep() const {
  std::vector<EncodeError> errors;
  const double* sums = encode_sums_.data();
  for (const std::string& value : program_.encode_errors.values) {
    double squared_error = 0, squares = 0;
    EncodeError& error = errors.emplace_back();
    error.value = value;
    for (int layer = 0; layer < program_.encode_errors.num_layers; ++layer) {
      squared_error += sums[encode::kSquaredError];
      squares += sums[encode::kSquares];
      error.largest_error =
          std::max(error.largest_error, sums[encode::kLargestError]);
      sums += encode::kNumErrors;
    }
    if (squares > 0) error.relative_error = std::sqrt(squared_error / squares);
  }
  return errors;
}

void Executor::CopyScalar(const Address& address, double& value) {
  device_.CopyToHost(&value, At(address, 0), sizeof(value), nullptr);
}

}  // namespace ebb
