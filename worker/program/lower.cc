// Runs the passes of lowering and writes the placed draft as a program.
#include "worker/program/lower.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/op_def.h"
#include "kernels/status.h"
#include "worker/program/account.h"
#include "worker/program/apply_plan.h"
#include "worker/program/arena_layout.h"
#include "worker/program/drafter.h"
#include "worker/program/encode.h"
#include "worker/program/fuse.h"
#include "worker/program/liveness.h"
#include "worker/program/offload.h"
#include "worker/program/offload_parameters.h"
#include "worker/program/offload_state.h"

namespace ebb {
namespace {

// Turns one draft block into a block of the program.
class BlockEmitter {
 public:
  BlockEmitter(const Draft& draft, const Layout& layout, const DraftBlock& from,
               bool in_microbatch)
      : draft_(draft),
        layout_(layout),
        from_(from),
        in_microbatch_(in_microbatch) {}

  Block Emit() && {
    block_.name = from_.name;
    block_.count = from_.count;
    block_.descending = from_.descending;
    block_.first_layer = from_.first_layer;
    block_.period = from_.period;
    block_.chunks = from_.chunks;
    block_.one_row = from_.one_row;
    for (size_t i = 0; i < from_.instructions.size(); ++i) {
      EmitInstruction(from_.instructions[i], from_.first_line + i);
    }
    return std::move(block_);
  }

 private:
  Address AddressOf(int storage, GroupOf group) const {
    const Storage& s = draft_.storages[storage];
    switch (s.home) {
      case Home::kState:
        return StateAddress(storage, group);
      case Home::kGradient:
      case Home::kScalar:
      case Home::kUpdate:
        return s.address;
      case Home::kTemporary:
        return {Arena::kStep, layout_.offset[storage], 0};
      case Home::kStaged:
        return StagedAddress(storage, group);
      case Home::kRecord:
        return RecordAddress(Arena::kStep, storage, group, layout_.record_base,
                             layout_.record_bytes);
      case Home::kHost:
        return RecordAddress(Arena::kHost, storage, group, layout_.host.base,
                             layout_.host.bytes);
      case Home::kDisk:
        return RecordAddress(Arena::kDisk, storage, group, layout_.disk.base,
                             layout_.disk.bytes);
    }
    return {};
  }

  Address StateAddress(int storage, GroupOf group) const {
    const Storage& s = draft_.storages[storage];
    Address address = s.address;
    switch (group) {
      case GroupOf::kIteration:
        break;
      case GroupOf::kBefore:
        address.base -= address.stride;
        break;
      case GroupOf::kAfter:
        address.base += address.stride;
        break;
      case GroupOf::kLast:
        if (s.key.segment >= 0) {
          address.base +=
              (draft_.segments[s.key.segment].count - 1) * address.stride;
        }
        address.stride = 0;
        break;
      case GroupOf::kFirst:
        address.stride = 0;
        break;
    }
    return address;
  }

  Address StagedAddress(int storage, GroupOf group) const {
    const Storage& s = draft_.storages[storage];
    const int64_t offset = layout_.offset[storage];
    if (s.ring == 1) return {Arena::kStep, offset, 0};
    if (group == GroupOf::kLast) {
      const int last = draft_.segments[s.key.segment].count - 1;
      return {Arena::kStep, offset + last % s.ring * s.bytes, 0};
    }
    if (group == GroupOf::kFirst) return {Arena::kStep, offset, 0};
    const int phase = group == GroupOf::kBefore  ? s.ring - 1
                      : group == GroupOf::kAfter ? 1
                                                 : 0;
    return {Arena::kStep, offset, s.bytes, s.ring, phase};
  }

  Address RecordAddress(Arena arena, int storage, GroupOf group,
                        const std::vector<int64_t>& record_base,
                        const std::vector<int64_t>& record_bytes) const {
    const int segment = draft_.storages[storage].key.segment;
    const int64_t offset = layout_.offset[storage];
    if (group == GroupOf::kLast) {
      const int last = draft_.segments[segment].count - 1;
      return {arena, offset + last * record_bytes[segment], 0};
    }
    if (segment == from_.segment) {
      const int64_t stride = record_bytes[segment];
      return {arena, group == GroupOf::kBefore ? offset - stride : offset,
              stride};
    }
    // The input of the next group, which this segment's stride reaches.
    if (from_.segment >= 0 && segment == from_.segment + 1 && from_.count > 1) {
      const int64_t stride = record_bytes[from_.segment];
      return {arena, record_base[from_.segment] + stride, stride};
    }
    return {arena, offset, 0};
  }

  // The layer in a storage's name, relative to the block's.
  int LayerOffset(const StorageKey& key, GroupOf group) const {
    if (key.segment < 0) return key.layer_in_group;
    if (group == GroupOf::kLast) {  // seen from the iteration next to it
      const LayerSegment& segment = draft_.segments[key.segment];
      const int layer = segment.first_layer +
                        (segment.count - 1) * segment.period +
                        key.layer_in_group;
      return from_.segment < 0 ? layer : layer - from_.first_layer;
    }
    if (group == GroupOf::kFirst) {  // seen from the last iteration before it
      const int layer =
          draft_.segments[key.segment].first_layer + key.layer_in_group;
      return from_.segment < 0
                 ? layer
                 : layer - from_.first_layer - (from_.count - 1) * from_.period;
    }
    if (from_.segment < 0) {  // outside the layers: the stream's instance
      return key.segment == 0 ? 0 : draft_.graph->num_layers;
    }
    if (group == GroupOf::kBefore) return key.layer_in_group - from_.period;
    if (group == GroupOf::kAfter) return key.layer_in_group + from_.period;
    if (key.segment == from_.segment) return key.layer_in_group;
    return from_.period + key.layer_in_group;
  }

  int32_t BufferOf(int storage, GroupOf group = GroupOf::kIteration) {
    auto [it, is_new] = buffers_.emplace(
        std::pair(storage, group), static_cast<int32_t>(block_.buffers.size()));
    if (is_new) {
      const Storage& s = draft_.storages[storage];
      Buffer buffer;
      buffer.name = s.name;
      buffer.layer_offset = LayerOffset(s.key, group);
      buffer.bytes = s.bytes;
      buffer.memory_class = s.memory_class;
      buffer.address = AddressOf(storage, group);
      block_.buffers.push_back(std::move(buffer));
    }
    return it->second;
  }

  void EmitInstruction(const DraftInstruction& from, size_t line) {
    Instruction to;
    to.kind = from.kind;
    to.iterations = from.iterations;
    to.phase = from.phase;
    to.backward_kernel = from.backward_kernel;
    to.name = from.name;
    to.op = from.op;
    to.attrs = from.attrs;
    to.layer_offset = from.layer_in_group;
    to.value_name = from.value_name;
    to.row_offset_stride = from.row_offset_stride;
    to.flops = from.flops;
    to.recompute_flops = from.recompute_flops;
    to.note = from.note;
    to.continues = from.continues;
    to.slice_rows = from.slice_rows;
    to.loop_rows = from.loop_rows;
    to.thread_scratch_bytes = from.thread_scratch_bytes;
    for (const DraftOperand& operand : from.operands) {
      Operand o;
      o.slot = operand.slot;
      o.gradient = operand.gradient;
      o.written = operand.written;
      o.buffer =
          operand.storage < 0 ? -1 : BufferOf(operand.storage, from.group);
      o.scratch_offset = operand.scratch_offset;
      o.type = operand.type;
      o.byte_offset = operand.byte_offset;
      o.byte_offset_stride = operand.byte_offset_stride;
      o.row_stride = operand.row_stride;
      to.operands.push_back(o);
    }
    for (int storage : from.allocates) {
      to.allocates.push_back(BufferOf(storage, from.group));
    }
    for (int storage : from.frees) {
      to.frees.push_back(BufferOf(storage, from.group));
    }
    if (IsCopy(to.kind)) {
      to.layer_offset = block_.buffers[to.operands[0].buffer].layer_offset;
    }
    for (const auto& [old_storage, new_storage] : from.replaces) {
      to.replaces.push_back({BufferOf(old_storage), BufferOf(new_storage)});
    }
    if (from.workspace_bytes > 0) {
      Buffer workspace;
      workspace.name = absl::StrCat(from.name, ".workspace");
      workspace.layer_offset = from.layer_in_group;
      workspace.bytes = from.workspace_bytes;
      workspace.memory_class = MemoryClass::kWorkspace;
      workspace.address = {
          Arena::kStep,
          in_microbatch_ ? layout_.workspace[line] : draft_.fixed_step_bytes,
          0};
      to.workspace = static_cast<int32_t>(block_.buffers.size());
      block_.buffers.push_back(std::move(workspace));
      to.allocates.push_back(to.workspace);
      to.frees.push_back(to.workspace);
    }
    block_.instructions.push_back(std::move(to));
  }

  const Draft& draft_;
  const Layout& layout_;
  const DraftBlock& from_;
  const bool in_microbatch_;
  Block block_;
  std::map<std::pair<int, GroupOf>, int32_t> buffers_;
};

// Where a value is computed again: the last such instruction, by layers of the
// block, value and layer within the group.
using Recomputations = std::map<std::tuple<int, std::string, int>, std::string>;

Recomputations FindRecomputations(const Program& program) {
  Recomputations found;
  for (const Block& block : program.blocks) {
    if (block.period == 0) continue;
    for (size_t i = 0; i < block.instructions.size(); ++i) {
      const Instruction& instruction = block.instructions[i];
      if (instruction.phase != Phase::kRecompute) continue;
      for (const Operand& operand : instruction.operands) {
        if (!operand.written) continue;
        ValueName value = NameOf(block, instruction, operand);
        found[{block.first_layer, std::move(value.name), value.layer_offset}] =
            absl::StrCat("recomputed at ", block.name, ":", i + 1);
      }
    }
  }
  return found;
}

// Says at every drop where the value is computed again.
void NoteDrops(Program& program) {
  const Recomputations recomputations = FindRecomputations(program);
  for (Block& block : program.blocks) {
    for (Instruction& drop : block.instructions) {
      if (drop.kind != InstructionKind::kDrop) continue;
      const auto it = recomputations.find(
          {block.first_layer, drop.name, drop.layer_offset});
      if (it != recomputations.end()) drop.note = it->second;
    }
  }
}

absl::StatusOr<Program> Emit(const Draft& draft, const Layout& layout,
                             int num_microbatches) {
  Program program;
  program.state_bytes = draft.state_bytes;
  program.step_bytes = layout.step_bytes;
  program.host_bytes = layout.host.arena_bytes;
  program.disk_bytes = layout.disk.arena_bytes;
  program.host_state_bytes = draft.host_state_bytes;
  program.disk_state_bytes = draft.disk_state_bytes;
  program.num_microbatches = num_microbatches;
  program.micro_batch = draft.graph->micro_batch;
  program.seq_len = draft.graph->seq_len;
  program.parameters = draft.parameters;
  program.loss_total = draft.storages[draft.loss_total].address;
  program.gradient_norm = draft.storages[draft.gradient_norm].address;
  program.encode_errors = draft.encode_errors;
  program.clip_scale = draft.storages[draft.clip_scale].address;
  if (draft.logits >= 0) {
    program.logits = draft.storages[draft.logits].address;
    program.logits_type = draft.logits_type;
  }
  const auto emit = [&](const std::vector<DraftBlock>& blocks,
                        bool in_microbatch) {
    for (const DraftBlock& block : blocks) {
      if (block.instructions.empty()) continue;
      program.blocks.push_back(
          BlockEmitter(draft, layout, block, in_microbatch).Emit());
    }
  };
  emit(draft.begin, false);
  program.begin_microbatch = static_cast<int>(program.blocks.size());
  emit(draft.microbatch, true);
  program.end_microbatch = static_cast<int>(program.blocks.size());
  emit(draft.end, false);
  NoteDrops(program);
  EBB_ASSIGN_OR_RETURN(program.account, AccountFor(program));
  return program;
}

}  // namespace

absl::StatusOr<Program> LowerTraining(const Graph& graph, const Plan& plan,
                                      const OptimizerSpec& optimizer,
                                      int num_microbatches,
                                      const Backend& backend) {
  if (plan.graph_fingerprint != graph.Fingerprint()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the plan is for another graph: fingerprint ",
                     absl::Hex(plan.graph_fingerprint), ", this graph's is ",
                     absl::Hex(graph.Fingerprint())));
  }
  EBB_ASSIGN_OR_RETURN(std::vector<LayerSegment> segments,
                       MakeSegments(graph, plan));
  Drafter drafter(graph, backend, std::move(segments));
  drafter.PlaceParameters(StatePlaceOf(plan));
  drafter.WriteBegin(/*gradients=*/true);
  drafter.WriteForward();
  drafter.WriteHead(/*backward=*/true);
  drafter.WriteBackward();
  drafter.WriteUpdate(optimizer);
  Draft draft = std::move(drafter).Take();
  Fuse(draft, backend);
  EBB_RETURN_IF_ERROR(InsertCodecs(draft, backend));
  EBB_RETURN_IF_ERROR(InsertCopies(draft));
  EBB_RETURN_IF_ERROR(InsertParameterCopies(draft));
  EBB_RETURN_IF_ERROR(InsertStateCopies(draft));
  EBB_RETURN_IF_ERROR(AnalyzeLiveness(draft, /*training=*/true, backend));
  return Emit(draft, LayOut(draft), num_microbatches);
}

namespace {

// All layers in one segment, all values kept: there is no backward pass.
LayerSegment ForwardSegment(const Graph& graph) {
  LayerSegment all;
  all.count = graph.num_layers;
  all.decisions.assign(1, std::vector<ActivationDecision>(
                              graph.values.size(), ActivationDecision::kKeep));
  all.formats.assign(1, std::vector<DType>(graph.values.size(), DType::kNone));
  return all;
}

absl::StatusOr<Program> Finish(Drafter drafter, int num_microbatches,
                               const Backend& backend) {
  Draft draft = std::move(drafter).Take();
  Fuse(draft, backend);
  EBB_RETURN_IF_ERROR(InsertParameterCopies(draft));
  EBB_RETURN_IF_ERROR(AnalyzeLiveness(draft, /*training=*/false, backend));
  return Emit(draft, LayOut(draft), num_microbatches);
}

}  // namespace

absl::StatusOr<Program> LowerEvaluation(const Graph& graph,
                                        const Program& training,
                                        int num_microbatches,
                                        const Backend& backend) {
  Drafter drafter(graph, backend, {ForwardSegment(graph)});
  drafter.UseParameters(training);
  drafter.WriteBegin(/*gradients=*/false);
  drafter.WriteForward();
  drafter.WriteHead(/*backward=*/false);
  return Finish(std::move(drafter), num_microbatches, backend);
}

absl::StatusOr<Program> LowerSampling(const Graph& graph,
                                      const Backend& backend) {
  Drafter drafter(graph, backend, {ForwardSegment(graph)});
  drafter.PlaceParameters(StatePlace());
  drafter.WriteBegin(/*gradients=*/false);
  drafter.WriteForward();
  drafter.WriteSampleHead();
  return Finish(std::move(drafter), 1, backend);
}

}  // namespace ebb
