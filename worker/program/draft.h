// A program before its bytes are placed: the same blocks and instructions, over
// storages that have a size and a life but no address yet. Lowering writes a
// draft (forward, head, backward, update), liveness says how long each storage
// lives and which results take over an operand's storage, arena_layout places
// them, and lower.cc turns the whole into a Program.
//
// The blocks of one microbatch are drafted once, so every instruction has one
// line number although a block may repeat. What a line stands for is the
// iteration with the most in use: the last of a forward block, the first of a
// backward block, which are the same group of layers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/op_call.h"
#include "kernels/tensor.h"
#include "worker/model/graph.h"
#include "worker/program/memory_class.h"
#include "worker/program/plan.h"
#include "worker/program/program.h"

namespace ebb {

// Where a storage's address comes from.
enum class Home : uint8_t {
  kState,      // parameters and moments: fixed, in an arena that holds state
  kGradient,   // parameter gradients: fixed, at the start of the step arena
  kScalar,     // totals: fixed, before the gradients
  kRecord,     // saved activation of a group of layers: at an offset within
               // the group's record, records lie one after the other
  kTemporary,  // all else: one address, the same in every iteration
  kStaged,     // device place of an offloaded value or parameter, before its
               // copy out is
               // done or since its copy in began: like kTemporary, but nothing
               // takes it over, and it may be a ring of places
  kHost,       // in the host arena: records as on the device
  kDisk,       // in the disk arena: the same
  kUpdate,  // device place of offloaded state in the update: fixed, above the
            // gradients
};

// What a storage holds.
enum class Content : uint8_t {
  kValue,       // of the graph, as forward made it
  kRecomputed,  // the same, computed again; version kOnTheWay: for a later
                // input of the group only
  kPrefetched,  // the same, copied back; of a parameter: brought to where it is
                // computed with, version 1 + the block
  kDecoded,     // the same, decoded from the form in which it was kept
  kHostCopy,    // the same in host memory or on disk
  kGradient,    // of an activation or a parameter
  kMaster,      // of a parameter that is stored narrower than fp32
  kFirstMoment,
  kSecondMoment,
  kInUpdate,  // a part of one of the above in its place for the update
  kScratch,   // an output that nobody reads
  kTotal,
};

// Segment indices of storages that belong to no segment of layers.
constexpr int kOutsideLayers = -1;
constexpr int kAllLayers = -2;  // blocks that walk all layers one by one:
                                // zeroing, norm, update

// Totals of a step, kAlignment bytes each at the start of the step arena: loss,
// norm, gradient norm, clip scale.
constexpr int kNumTotals = 4;

// Version of what is computed again on the way to a later input of its group
// and not held until the layer's own backward.
constexpr int kOnTheWay = 1;

// What of an encoded value a storage holds.
enum class EncodedPart : uint8_t { kNone, kCode, kScale };

// Identity of a storage. `layer_in_group` counts from the start of the group.
// `version` tells partial gradients of one value apart.
struct StorageKey {
  Content content = Content::kValue;
  int value = -1;
  int segment = kOutsideLayers;
  int layer_in_group = 0;
  int version = 0;
  // kValue, kHostCopy and kPrefetched: of the value's encoded form.
  EncodedPart part = EncodedPart::kNone;
  auto operator<=>(const StorageKey&) const = default;
};

struct Storage {
  StorageKey key;
  std::string name;
  int64_t bytes = 0;  // aligned
  MemoryClass memory_class = MemoryClass::kLive;
  Home home = Home::kTemporary;
  Address address;  // where fixed: as its own segment sees it

  // Set by liveness, in lines of the microbatch: the line that brings it to
  // life, the last one in use (both included), whether backward reads what
  // forward made, and the storage whose place this one takes over (-1: none).
  int first_line = -1;
  int last_line = -1;
  bool read_in_backward = false;
  int takes_over = -1;
  // First line at which the place must be free: before first_line where an
  // earlier iteration of the block writes it.
  int placed_from = -1;
  // kStaged: last line at which the place is still taken, the number of places
  // that iterations take in turn, and a storage that has the same place before
  // or after it (-1: none).
  int placed_until = -1;
  int ring = 1;
  int same_place = -1;
};

// Which group of a storage's segment an instruction means.
enum class GroupOf : uint8_t {
  kIteration,  // the one that the iteration runs; in a block outside the layers
               // the first
  kBefore,     // the group below that
  kAfter,      // the group above that
  kFirst,      // the segment's first; for the block that runs before the
               // segment's forward
  kLast,       // the segment's last; for blocks of other segments
};

struct DraftOperand {
  int8_t slot = 0;
  bool gradient = false;
  bool written = false;
  int storage = 0;
  TensorType type;
  int64_t byte_offset = 0;
  int64_t byte_offset_stride = 0;
  int64_t row_stride = 0;
  int64_t scratch_offset = -1;  // as in Operand; then storage is -1
};

struct DraftInstruction {
  InstructionKind kind = InstructionKind::kCompute;
  Iterations iterations = Iterations::kAll;
  GroupOf group = GroupOf::kIteration;  // copies and awaits: of all storages
  Phase phase = Phase::kForward;
  bool backward_kernel = false;
  std::string name;
  Op op = Op::kNumOps;
  OpAttrs attrs;
  int layer_in_group = 0;
  std::string value_name;
  int64_t row_offset_stride = 0;
  std::vector<DraftOperand> operands;
  int64_t workspace_bytes = 0;
  bool continues = false;  // as in Instruction
  int64_t slice_rows = 0;
  int64_t loop_rows = 0;
  int64_t thread_scratch_bytes = 0;
  double flops = 0;
  double recompute_flops = 0;
  std::string note;
  int dropped = -1;  // kDrop: the storage

  // Set by liveness, as in Instruction; storages.
  std::vector<int> allocates;
  std::vector<int> frees;
  std::vector<std::pair<int, int>> replaces;  // (old, new)
};

struct DraftBlock {
  std::string name;
  int count = 1;
  bool descending = false;
  int first_layer = 0;
  int period = 0;
  bool chunks = false;
  bool one_row = false;
  int segment = kOutsideLayers;
  int first_line = 0;  // of its first instruction; microbatch blocks only
  std::vector<DraftInstruction> instructions;
};

// Consecutive groups of layers with equal decisions: `count` groups of `period`
// layers each. The input of each group's first layer is not computed again.
struct LayerSegment {
  int first_layer = 0;
  int period = 1;
  int count = 0;
  // [layer in group][value]
  std::vector<std::vector<ActivationDecision>> decisions;

  // The same: in what elements the value is kept or offloaded.
  std::vector<std::vector<DType>> formats;

  ActivationDecision decision(int layer_in_group, int value) const {
    return decisions[layer_in_group][value];
  }
  // kNone: not encoded.
  DType format(int layer_in_group, int value) const {
    return formats[layer_in_group][value];
  }
  DType input_format(const Graph& graph) const {
    return formats[0][graph.stream];
  }
  // Of the input of the groups.
  ActivationDecision input_decision(const Graph& graph) const {
    return decisions[0][graph.stream];
  }
};

// Arenas in which parameters and the optimizer's state lie.
struct StatePlace {
  Arena parameters = Arena::kState;
  Arena optimizer = Arena::kState;
};

// Everything that the passes of lowering hand on.
struct Draft {
  const Graph* graph = nullptr;
  std::vector<LayerSegment> segments;
  std::vector<Storage> storages;
  std::map<StorageKey, int> storage_of;
  std::vector<DraftBlock> begin;       // once a step, before the microbatches
  std::vector<DraftBlock> microbatch;  // once a microbatch
  std::vector<DraftBlock> end;         // once a step, after them
  // Where each parameter lies, by value; -1 entries for other values.
  std::vector<ParameterLayout> parameters;
  std::vector<int> parameter_of_value;  // index in `parameters`
  int loss_total = -1;                  // storages of totals
  int norm_total = -1;
  int gradient_norm = -1;
  int clip_scale = -1;
  EncodeErrors encode_errors;
  int logits = -1;  // sampling; of this type
  TensorType logits_type;
  int64_t state_bytes = 0;
  int64_t host_state_bytes = 0;
  int64_t disk_state_bytes = 0;
  int64_t fixed_step_bytes = 0;   // totals and gradients
  int64_t update_step_bytes = 0;  // end of the places of Home::kUpdate

  // In what elements the value of this key is kept; kNone: as it is.
  DType FormatOf(const StorageKey& key) const {
    return key.segment < 0 || key.segment >= static_cast<int>(segments.size())
               ? DType::kNone
               : segments[key.segment].format(key.layer_in_group, key.value);
  }
  // Of an activation's storage.
  TensorType TypeOf(const StorageKey& key) const;
  // A key of the first input of a group of layers.
  bool IsGroupInput(const StorageKey& key) const {
    return key.value == graph->stream && key.layer_in_group == 0 &&
           key.part == EncodedPart::kNone;
  }

  // Returns the storage with this key, or -1.
  int Find(const StorageKey& key) const {
    auto it = storage_of.find(key);
    return it == storage_of.end() ? -1 : it->second;
  }
  // Adds a storage; the key must be new.
  int Add(Storage storage);
};

}  // namespace ebb
