// The ordered work of one rank, with every byte placed: what the executor runs,
// what Dump() prints and what memory and FLOPs are counted from. Plain data.
//
// A program is a list of blocks. A block is a flat list of instructions that
// runs `count` times; its loop variable i (a group of layers, or a chunk of the
// head) enters addresses only as base + i * stride. The blocks between
// begin_microbatch and end_microbatch run once a microbatch.
//
// Copies between the device and host memory or disk run beside the other
// instructions, one after the other in the order in which the program starts
// them. The program says all that must wait: a copy starts behind the
// instruction that wrote its source, and whatever reads what a copy brought, or
// uses the place of what it took away, stands behind an instruction that awaits
// it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/op_call.h"
#include "kernels/ops/op.h"
#include "kernels/tensor.h"
#include "worker/program/memory_class.h"

namespace ebb {

enum class Arena : uint8_t {
  kState,  // parameters, optimizer: outlives steps, policy-independent
  kStep,   // all else on the device
  kHost,   // offloaded values, in host memory
  kDisk,   // offloaded values, in a file of the rank
  // As kState, of what is offloaded: in host memory and in a file of the rank.
  kHostState,
  kDiskState,
};

constexpr int kNumArenas = 6;

// Places in the disk arena are whole blocks of this: what reads and writes
// around the page cache ask for on any device of today.
constexpr int64_t kDiskBlockBytes = 4096;

inline bool IsOffDevice(Arena arena) {
  return arena != Arena::kState && arena != Arena::kStep;
}
inline bool IsOnDisk(Arena arena) {
  return arena == Arena::kDisk || arena == Arena::kDiskState;
}
// Whether what lies there outlives steps.
inline bool HoldsState(Arena arena) {
  return arena == Arena::kState || arena == Arena::kHostState ||
         arena == Arena::kDiskState;
}
// What a storage of so many bytes takes in the arena.
inline int64_t BytesIn(Arena arena, int64_t bytes) {
  const int64_t unit = IsOnDisk(arena) ? kDiskBlockBytes : kAlignment;
  return (bytes + unit - 1) / unit * unit;
}

enum class Phase : uint8_t { kForward, kRecompute, kBackward, kUpdate };

const char* PhaseName(Phase phase);  // forward, recompute, backward, update

// Byte offset in an arena at iteration i of the block: base + i * stride or, in
// a ring of places, base + ((i * ring_step + phase) mod ring) * stride.
struct Address {
  Arena arena = Arena::kStep;
  int64_t base = 0;
  int64_t stride = 0;
  int ring = 0;  // places; 0: as many as iterations
  int phase = 0;
  int ring_step = 1;  // places that an iteration moves on by
  int64_t At(int64_t iteration) const {
    return base +
           (ring == 0 ? iteration : (iteration * ring_step + phase) % ring) *
               stride;
  }
  bool operator==(const Address&) const = default;
};

// One storage as one block sees it.
struct Buffer {
  std::string name;  // value name, with ".grad" for gradients: "L*.mlp_fc.y"
  int layer_offset =
      0;  // the name's layer is Instruction::LayerOf(i) of this offset
  int64_t bytes = 0;  // AlignUp of the value's bytes
  MemoryClass memory_class = MemoryClass::kLive;
  Address address;
};

// A slot (or the gradient of a slot) of an instruction's op, bound to a buffer
// or to a view of it.
struct Operand {
  int8_t slot = 0;
  bool gradient = false;
  bool written = false;
  int32_t buffer = 0;  // index in Block::buffers
  TensorType type;     // of the view
  // Of the view within the buffer at iteration i of the block:
  // byte_offset + i * byte_offset_stride (chunks of the head).
  int64_t byte_offset = 0;
  int64_t byte_offset_stride = 0;
  int64_t row_stride = 0;  // elements
  // An intermediate of a row loop that nobody else reads: it has no buffer (-1)
  // and lies at this offset of a thread's scratch. -1: it has one.
  int64_t scratch_offset = -1;
};

enum class InstructionKind : uint8_t {
  kCompute,
  kLoadBatch,  // fills tokens and targets (operands 0 and 1) of the microbatch
  kDrop,       // frees a value that is computed again later; no work
  kOffload,    // starts a copy of operand 0, on the device, to operand 1
  kPrefetch,   // starts a copy of operand 0, off the device, to operand 1
  kAwait,      // until the copies last started on its operands, all off the
               // device, are done
};

inline bool IsCopy(InstructionKind kind) {
  return kind == InstructionKind::kOffload ||
         kind == InstructionKind::kPrefetch || kind == InstructionKind::kAwait;
}

// Which iterations of its block, in the order in which they run, an instruction
// runs in.
enum class Iterations : uint8_t {
  kAll,
  kFirst,
  kAllButFirst,
  kLast,
  kAllButLast,
};

struct Instruction {
  InstructionKind kind = InstructionKind::kCompute;
  Iterations iterations = Iterations::kAll;
  Phase phase = Phase::kForward;
  // Runs the op's backward kernel. Not the same as phase kBackward, in which
  // sums of partial gradients run the forward kernel of `add`.
  bool backward_kernel = false;
  std::string name;  // node: "L*.mlp_fc"
  Op op = Op::kNumOps;
  OpAttrs attrs;
  int layer_offset = 0;    // layer = block.LayerOf(i, layer_offset)
  std::string value_name;  // template whose ValueKey(value_name, layer) keys
                           // the op's random draws; empty: draws nothing
  int64_t row_offset = 0;  // OpCall::row_offset = row_offset
  int64_t row_offset_stride = 0;  //   + i * row_offset_stride
  std::vector<Operand> operands;
  int32_t workspace = -1;  // buffer, in `allocates` and `frees` too; -1: none

  // Row loops and tails (kernels/row_loop.h): the first instruction of a loop
  // has the rows of a block and of the whole, the others continue it; a tail
  // continues a product. All run when the first does; what they use is alive
  // from the first to the last.
  bool continues = false;
  int64_t slice_rows = 0;
  int64_t loop_rows = 0;
  int64_t thread_scratch_bytes = 0;

  // Buffers that come to life before the instruction runs, and that die after
  // it. An in-place result takes over its operand's storage: the pair is in
  // `replaces` (old, new) and the old one ends as the new one begins. A storage
  // is the same in two blocks if its address is; what is alive at the end of a
  // step (totals, the norm) ends with it.
  std::vector<int32_t> allocates;
  std::vector<int32_t> frees;
  struct Replace {
    int32_t old_buffer;
    int32_t new_buffer;
  };
  std::vector<Replace> replaces;

  double flops = 0;            // of one execution
  double recompute_flops = 0;  // of these: phase recompute, or computed twice
                               // inside the op's backward
  std::string note;            // for the dump: "recomputed at backward_layer:4"
};

// A value as an instruction names it; its layer is Block::LayerOf(i, offset).
struct ValueName {
  std::string name;
  int layer_offset = 0;
  bool operator==(const ValueName&) const = default;
};

struct Block {
  std::string name;         // "forward_layer"
  int count = 1;            // iterations
  bool descending = false;  // i runs from count - 1 to 0
  // Layers of the block: iteration i covers first_layer + i * period ..
  // + period - 1. period 0: the block has no layers.
  int first_layer = 0;
  int period = 0;
  bool chunks = false;  // i is a chunk of the head
  // i is a row of the microbatch, and one iteration alone runs: the row that
  // the executor is told.
  bool one_row = false;
  std::vector<Buffer> buffers;
  std::vector<Instruction> instructions;

  int LayerOf(int64_t iteration, int layer_offset) const {
    return period == 0 ? layer_offset
                       : static_cast<int>(first_layer + iteration * period +
                                          layer_offset);
  }

  // Whether the instruction runs in that iteration.
  bool Runs(const Instruction& instruction, int64_t iteration) const {
    const int64_t first = descending ? count - 1 : 0;
    const int64_t last = descending ? 0 : count - 1;
    switch (instruction.iterations) {
      case Iterations::kAll:
        return true;
      case Iterations::kFirst:
        return iteration == first;
      case Iterations::kAllButFirst:
        return iteration != first;
      case Iterations::kLast:
        return iteration == last;
      case Iterations::kAllButLast:
        return iteration != last;
    }
    return true;
  }
};

// The value that an operand holds: its buffer's or, in the scratch of a row
// loop, its slot of the node.
ValueName NameOf(const Block& block, const Instruction& instruction,
                 const Operand& operand);

// A parameter and what belongs to it, for initialisation, checkpoints and
// tests. One entry a template; layer l lies l * stride further.
struct ParameterLayout {
  std::string name;    // "L*.mlp_fc.weight"
  TensorType type;     // of the weight that the model computes with
  int num_layers = 0;  // 0: outside the layers, one instance
  // In arenas that hold state. Where the weight is stored in fp32 it is its own
  // master: the two addresses are equal.
  Address parameter, master, first_moment, second_moment;
  Address gradient;  // step arena

  bool has_master() const { return type.dtype != DType::kF32; }
  // Of master, moments and gradient: fp32 whatever the weight is stored in.
  TensorType fp32_type() const { return type.WithDType(DType::kF32); }
  // Bytes of all layers, by class, that lie in that arena. Master and moments
  // lie in one.
  int64_t parameter_bytes(Arena arena) const {
    return parameter.arena != arena
               ? 0
               : BytesIn(arena, type.bytes()) * std::max(1, num_layers);
  }
  int64_t optimizer_bytes(Arena arena) const {
    return first_moment.arena != arena
               ? 0
               : BytesIn(arena, fp32_type().bytes()) * std::max(1, num_layers) *
                     (has_master() ? 3 : 2);
  }
};

// What a step uses and does, derived from the instructions (worker/program/
// account.h) when the program is made.
struct ProgramAccount {
  MemoryBytes memory;             // at the moment of the peak, without kRuntime
  int64_t peak_bytes = 0;         // their sum: state and step arena
  int64_t largest_use_bytes = 0;  // largest sum in use in the step arena
  int64_t saved_bytes = 0;        // largest sum of kSaved
  int64_t host_bytes = 0;  // largest sum in use in host memory, state included
  int64_t disk_bytes = 0;  // and on disk
  double model_flops = 0;  // of one step, all microbatches
  double recompute_flops = 0;
  int64_t num_recompute = 0;  // recompute instructions of one microbatch
};

// What encoding loses in a step, summed up in the step arena: of every value
// and layer the sums of encode::Errors, layers of one value one after the
// other. Those of layers in which the value is not encoded stay zero.
struct EncodeErrors {
  std::vector<std::string> values;  // templates: "L*.mlp_act.y"
  std::vector<TensorType> types;    // of these
  DType format = DType::kNone;
  int num_layers = 0;
  Address address;
};

struct Program {
  int64_t state_bytes = 0;
  int64_t step_bytes = 0;
  int64_t host_bytes = 0;
  int64_t disk_bytes = 0;
  int64_t host_state_bytes = 0;
  int64_t disk_state_bytes = 0;
  int num_microbatches = 1;
  int64_t micro_batch = 0;  // sequences
  int64_t seq_len = 0;
  std::vector<Block> blocks;
  int begin_microbatch = 0;  // blocks [begin, end) run once a microbatch
  int end_microbatch = 0;
  std::vector<ParameterLayout> parameters;
  Address loss_total;     // f64: sum of token losses over the microbatches
  Address gradient_norm;  // f64
  Address clip_scale;     // f64
  EncodeErrors encode_errors;
  // Sampling alone: the logits of one row [1, vocab].
  Address logits;
  TensorType logits_type;
  ProgramAccount account;
};

inline int64_t ArenaBytes(const Program& program, Arena arena) {
  switch (arena) {
    case Arena::kState:
      return program.state_bytes;
    case Arena::kStep:
      return program.step_bytes;
    case Arena::kHost:
      return program.host_bytes;
    case Arena::kDisk:
      return program.disk_bytes;
    case Arena::kHostState:
      return program.host_state_bytes;
    case Arena::kDiskState:
      return program.disk_state_bytes;
  }
  return 0;
}

// Bytes of parameters and optimizer, by class, that lie in that arena.
inline MemoryBytes StateBytes(const Program& program, Arena arena) {
  MemoryBytes bytes;
  for (const ParameterLayout& layout : program.parameters) {
    bytes[MemoryClass::kParameters] += layout.parameter_bytes(arena);
    bytes[MemoryClass::kOptimizer] += layout.optimizer_bytes(arena);
  }
  return bytes;
}

// Calls visit(block, instruction) for every instruction of a step that
// computes, in order, as often as it runs.
template <typename Visit>
void ForEachCompute(const Program& program, const Visit& visit) {
  const auto run = [&](int begin, int end) {
    for (int b = begin; b < end; ++b) {
      const Block& block = program.blocks[b];
      for (int i = 0; i < (block.one_row ? 1 : block.count); ++i) {
        for (const Instruction& instruction : block.instructions) {
          if (instruction.kind == InstructionKind::kCompute) {
            visit(block, instruction);
          }
        }
      }
    }
  };
  run(0, program.begin_microbatch);
  for (int m = 0; m < program.num_microbatches; ++m) {
    run(program.begin_microbatch, program.end_microbatch);
  }
  run(program.end_microbatch, static_cast<int>(program.blocks.size()));
}

}  // namespace ebb
