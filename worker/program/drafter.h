// Writes the draft of a program from a graph, segment by segment. Five files
// hold its parts: forward.cc, chunk_head.cc, sample_head.cc, backward.cc (with
// recompute on demand) and update.cc; drafter.cc has what they share.
//
// Order of a step: zero gradients; per microbatch embedding, layers, final
// norm, head (forward and backward, chunk by chunk), layers backwards,
// embedding backwards; then norm, clip and update. Gradient operations come in
// reverse graph order whatever the plan, so no plan changes a sum.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops/op_def.h"
#include "worker/model/graph.h"
#include "worker/model/job_spec.h"
#include "worker/program/draft.h"

namespace ebb {

class Drafter {
 public:
  // Keeps references to graph and backend, which must outlive it.
  Drafter(const Graph& graph, const Backend& backend,
          std::vector<LayerSegment> segments);

  // Fixes where parameters, moments and gradients lie. Training.
  void PlaceParameters(const StatePlace& state);
  // Takes over the parameters' places of another program. Evaluation.
  void UseParameters(const Program& training);

  void WriteBegin(bool gradients);  // totals and gradients to zero
  void WriteForward();
  void WriteHead(bool backward);
  void WriteSampleHead();  // logits of one row instead of a loss
  void WriteBackward();
  void WriteUpdate(const OptimizerSpec& optimizer);

  Draft Take() && { return std::move(draft_); }

 private:
  // Where a node runs: block, and the layer within the group.
  struct Place {
    DraftBlock* block;
    int layer_in_group = 0;
    // Only to make a later input of the group.
    bool on_the_way = false;
  };

  // --- drafter.cc: values, storages, instructions ---
  std::vector<TensorType> SlotTypes(const Node& node) const;
  // Key of the storage that holds `ref` in a block of `segment`.
  StorageKey KeyOf(const ValueRef& ref, int segment, int layer_in_group) const;
  // The storage with that key, made at its first mention.
  int StorageOf(const StorageKey& key);
  int AddStorage(const StorageKey& key, int64_t bytes,
                 MemoryClass memory_class);
  int ParameterStorage(const StorageKey& key);
  // Binds `ref` (a view where it is one) of the storage.
  DraftOperand Bind(int slot, const ValueRef& ref, int storage) const;
  DraftInstruction Start(const Node& node, Phase phase,
                         int layer_in_group) const;
  // Sets workspace and FLOPs of an instruction on these types.
  void SetCosts(DraftInstruction& instruction,
                std::span<const TensorType> types, uint32_t bound) const;
  int NumSegments() const { return static_cast<int>(draft_.segments.size()); }

  // --- forward.cc ---
  void WriteForwardNode(const Node& node, const Place& place);

  // --- chunk_head.cc ---
  void WriteHeadBlock(const char* name, int64_t first_row, int64_t rows,
                      int count, bool backward, int version);

  // --- backward.cc ---
  ActivationDecision DecisionOn(const StorageKey& key) const;
  // In device or host memory, between forward and backward.
  bool IsKept(const StorageKey& key) const {
    return !IsRecompute(DecisionOn(key));
  }
  // Key of a value that is not kept, as computed again at `place`.
  StorageKey RecomputedKey(StorageKey key, const Place& place) const;
  // The storage where a value can be read now: as forward left it, as a copy
  // brought it back, or computed again (the instructions are appended to the
  // block).
  int MakeResident(const ValueRef& ref, const Place& place);
  void WriteRecompute(const Node& node, const Place& place);
  void WriteBackwardNode(const Node& node, const Place& place);
  // Where a contribution to the gradient of `ref` is written.
  int NewGradient(const ValueRef& ref, const StorageKey& key, bool* is_partial);
  // Makes `storage` the gradient of the value, or adds it to the one it has.
  void Contribute(const StorageKey& key, int storage, const Place& place);

  // --- update.cc ---
  DraftInstruction StartUpdate(Op op, std::string name) const;
  int TotalStorage(const char* name, int index);
  DraftOperand BindWhole(int slot, int storage, const TensorType& type,
                         bool written) const;
  // Calls `write(block, parameter index)` for parameters outside the layers in
  // a block `name`, then for those of the layers in a block `name_layer`.
  template <typename Write>
  void WriteParameterBlocks(std::vector<DraftBlock>& blocks, const char* name,
                            const Write& write);

  const Graph& graph_;
  const Backend& backend_;
  Draft draft_;
  std::vector<int> producer_;  // [value]: layer node that makes it, or -1
  // Gradient of each value (keyed as the value) as far as it is known.
  std::map<StorageKey, int> gradients_;
  int num_versions_ = 0;
};

}  // namespace ebb
