#include "worker/program/dump.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/ops/op_def.h"
#include "worker/model/graph.h"

namespace ebb {
namespace {

std::string BlockLine(const Program& program, const Block& block,
                      bool in_microbatch) {
  std::string line = absl::StrCat("block ", block.name);
  if (block.period > 0) {
    const int first = block.first_layer;
    const int last = first + block.count * block.period - 1;
    absl::StrAppend(&line, "  layers ", block.descending ? last : first, "..",
                    block.descending ? first : last);
    if (block.period > 1) absl::StrAppend(&line, "  groups of ", block.period);
  }
  if (block.chunks) {
    absl::StrAppend(&line, block.one_row ? "  one row of 0.." : "  chunks 0..",
                    block.count - 1);
  }
  if (in_microbatch) {
    absl::StrAppend(&line, "  mb 0..", program.num_microbatches - 1);
  }
  return line;
}

// "qkv" in the block of one layer, "+1.qkv" in the second layer of a group.
std::string LocalName(const Block& block, const std::string& name,
                      int layer_offset) {
  if (!absl::StartsWith(name, "L*.")) return name;
  if (block.period == 0) return InstanceName(name, layer_offset);
  if (block.period == 1 && layer_offset == 0) return name.substr(3);
  return absl::StrCat(layer_offset < 0 ? "" : "+", layer_offset, ".",
                      name.substr(3));
}

std::string Operands(const Instruction& instruction) {
  if (instruction.kind == InstructionKind::kLoadBatch) {
    return "-> tokens, targets";
  }
  const OpDef& def = GetOpDef(instruction.op);
  std::vector<std::string> reads;
  std::vector<std::string> writes;
  for (const Operand& operand : instruction.operands) {
    const char* slot = def.slots[operand.slot].name;
    if (!operand.written) {
      if (!operand.gradient) reads.push_back(slot);
    } else {
      writes.push_back(slot);
    }
  }
  std::string text = instruction.backward_kernel
                         ? absl::StrCat("d(", absl::StrJoin(writes, ", "), ")")
                         : absl::StrCat(absl::StrJoin(reads, ", "), " -> ",
                                        absl::StrJoin(writes, ", "));
  if (instruction.backward_kernel && !reads.empty()) {
    absl::StrAppend(&text, " reads ", absl::StrJoin(reads, ", "));
  }
  if (!instruction.replaces.empty()) absl::StrAppend(&text, "  in place");
  if (instruction.slice_rows > 0) {
    absl::StrAppend(&text, "  loop over ", instruction.slice_rows, " rows");
  }
  return text;
}

// How an instruction belongs to the one that it continues.
const char* ContinuesText(const Block& block, size_t number) {
  size_t n = number - 1;
  if (!block.instructions[n].continues) return "";
  while (block.instructions[n].continues) --n;
  return block.instructions[n].slice_rows > 0 ? "  in the loop"
                                              : "  on each block of it";
}

const char* IterationsText(Iterations iterations) {
  switch (iterations) {
    case Iterations::kAll:
      break;
    case Iterations::kFirst:
      return "  in the first";
    case Iterations::kAllButFirst:
      return "  in all but the first";
    case Iterations::kLast:
      return "  in the last";
    case Iterations::kAllButLast:
      return "  in all but the last";
  }
  return "";
}

// The line number of the first instruction that reads what a prefetch brings,
// in whatever iteration; 0: one of another block.
size_t FirstReader(const Block& block, const Buffer& prefetched) {
  for (size_t i = 0; i < block.instructions.size(); ++i) {
    if (IsCopy(block.instructions[i].kind)) continue;
    for (const Operand& operand : block.instructions[i].operands) {
      if (operand.buffer < 0) continue;
      const Buffer& buffer = block.buffers[operand.buffer];
      if (buffer.name == prefetched.name &&
          buffer.address.base == prefetched.address.base) {
        return i + 1;
      }
    }
  }
  return 0;
}

// "copy offload   attention.y   131072 B  after 4", "copy prefetch  attention.y
// 131072 B  needed at 3"; in a block of one layer, -1.attention.y is the
// layer's below.
std::string CopyLine(const Block& block, const Instruction& instruction,
                     size_t number) {
  if (instruction.kind == InstructionKind::kAwait) {
    std::vector<std::string> names;
    for (const Operand& operand : instruction.operands) {
      const Buffer& buffer = block.buffers[operand.buffer];
      names.push_back(LocalName(block, buffer.name, buffer.layer_offset));
    }
    return absl::StrFormat("%3d copy    await     %s%s", number,
                           absl::StrJoin(names, ", "),
                           IterationsText(instruction.iterations));
  }
  const bool is_offload = instruction.kind == InstructionKind::kOffload;
  const Operand& source = instruction.operands[0];
  const Buffer& device =
      block
          .buffers[is_offload ? source.buffer : instruction.operands[1].buffer];
  std::string line = absl::StrFormat(
      "%3d copy    %-9s %-24s %d B", number,
      is_offload ? "offload" : "prefetch",
      LocalName(block, device.name, device.layer_offset), source.type.bytes());
  if (is_offload) {
    absl::StrAppend(&line, "  after ", number - 1);
  } else if (const size_t reader = FirstReader(block, device); reader > 0) {
    absl::StrAppend(&line, "  needed at ", reader);
  }
  return line + IterationsText(instruction.iterations);
}

std::string InstructionLine(const Block& block, const Instruction& instruction,
                            size_t number) {
  const std::string name =
      LocalName(block, instruction.name, instruction.layer_offset);
  if (instruction.kind == InstructionKind::kDrop) {
    int64_t bytes = 0;
    for (int32_t buffer : instruction.frees) {
      bytes += block.buffers[buffer].bytes;
    }
    std::string line =
        absl::StrFormat("%3d compute drop      %s  %d B", number, name, bytes);
    if (!instruction.note.empty()) {
      absl::StrAppend(&line, "  ", instruction.note);
    }
    return line;
  }
  if (IsCopy(instruction.kind)) return CopyLine(block, instruction, number);
  if (instruction.kind == InstructionKind::kLoadBatch) {
    return absl::StrFormat("%3d copy    load      %-24s %s", number, name,
                           Operands(instruction));
  }
  return absl::StrFormat("%3d compute %-9s %-24s %-16s %s%s", number,
                         PhaseName(instruction.phase), name,
                         GetOpDef(instruction.op).name, Operands(instruction),
                         ContinuesText(block, number));
}

}  // namespace

std::string Dump(const Program& program) {
  const ProgramAccount& account = program.account;
  const int64_t disk_bytes = program.disk_bytes + program.disk_state_bytes;
  std::string text =
      absl::StrCat("# rank 0  tp 0/1  pp 0/1  state ", program.state_bytes,
                   " B  step ", program.step_bytes, " B  host ",
                   program.host_bytes + program.host_state_bytes, " B",
                   disk_bytes > 0 ? absl::StrCat("  disk ", disk_bytes, " B")
                                  : std::string(),
                   "  saved ", account.saved_bytes, " B  recompute ",
                   account.num_recompute, " ops a microbatch\n# peak");
  for (int c = 0; c < kNumMemoryClasses; ++c) {
    if (account.memory.bytes[c] == 0) continue;
    absl::StrAppend(&text, "  ", MemoryClassName(static_cast<MemoryClass>(c)),
                    " ", account.memory.bytes[c], " B");
  }
  absl::StrAppendFormat(&text,
                        "\n# FLOPs a step (attention as full square)  model "
                        "%.17g  recompute %.17g\n",
                        account.model_flops, account.recompute_flops);
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    const Block& block = program.blocks[b];
    const int index = static_cast<int>(b);
    absl::StrAppend(&text,
                    BlockLine(program, block,
                              index >= program.begin_microbatch &&
                                  index < program.end_microbatch),
                    "\n");
    for (size_t i = 0; i < block.instructions.size(); ++i) {
      std::string line = InstructionLine(block, block.instructions[i], i + 1);
      line.erase(line.find_last_not_of(' ') + 1);
      absl::StrAppend(&text, line, "\n");
    }
  }
  return text;
}

}  // namespace ebb
