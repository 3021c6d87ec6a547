// Finds where each value is made and read, and what is to happen there.
#include "worker/program/offload.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "worker/program/draft_edit.h"

namespace ebb {
namespace {

StorageKey WithContent(StorageKey key, Content content) {
  key.content = content;
  return key;
}

class Inserter {
 public:
  explicit Inserter(Draft& draft)
      : draft_(draft), insertions_(draft.microbatch.size()) {}

  absl::Status Run() {
    FindBlocks();
    FindOffloaded();
    for (const Offloaded& value : offloaded_) {
      EBB_RETURN_IF_ERROR(value.is_input ? WriteInputOut(value)
                                         : WriteOut(value));
    }
    // A copy that is needed first begins first.
    EBB_RETURN_IF_ERROR(SortByReaders());
    for (const Offloaded& value : offloaded_) WriteBack(value);
    for (size_t b = 0; b < insertions_.size(); ++b) {
      std::move(insertions_[b]).ApplyTo(draft_.microbatch[b]);
    }
    return CheckInputs();
  }

 private:
  struct Offloaded {
    StorageKey key;
    int made = 0;  // storages
    int host = 0;
    int prefetched = 0;
    bool is_input = false;
    Use read;  // in the backward block of its segment
  };

  int NumSegments() const { return static_cast<int>(draft_.segments.size()); }

  void FindBlocks() {
    forward_.assign(NumSegments() + 1, -1);
    backward_.assign(NumSegments() + 1, -1);
    for (size_t b = 0; b < draft_.microbatch.size(); ++b) {
      const DraftBlock& block = draft_.microbatch[b];
      const int index = static_cast<int>(b);
      if (block.segment >= 0) {
        (block.descending ? backward_ : forward_)[block.segment] = index;
      }
      // Behind the last segment, and before it on the way back.
      if (block.name == "final_forward") forward_.back() = index;
      if (block.name == "final_backward") backward_.back() = index;
      if (block.name == "embedding") embedding_ = index;
    }
  }

  void FindOffloaded() {
    const int num_storages = static_cast<int>(draft_.storages.size());
    for (int s = 0; s < num_storages; ++s) {
      const StorageKey key = draft_.storages[s].key;
      if (key.content != Content::kPrefetched) continue;
      Offloaded value;
      value.key = key;
      value.prefetched = s;
      value.made = draft_.Find(WithContent(key, Content::kValue));
      EBB_CHECK(value.made >= 0);
      value.is_input = draft_.IsGroupInput(key);
      for (const int storage : {value.made, value.prefetched}) {
        draft_.storages[storage].home = Home::kStaged;
        draft_.storages[storage].memory_class = MemoryClass::kSaved;
      }
      Storage host;
      host.key = WithContent(key, Content::kHostCopy);
      host.name = draft_.storages[s].name;
      host.bytes = draft_.storages[s].bytes;
      host.memory_class = MemoryClass::kSaved;
      host.home = Home::kHost;
      if (draft_.segments[key.segment].decision(key.layer_in_group,
                                                key.value) ==
          ActivationDecision::kOffloadDisk) {
        host.home = Home::kDisk;
        host.bytes = (host.bytes + kDiskBlockBytes - 1) / kDiskBlockBytes *
                     kDiskBlockBytes;
      }
      value.host = draft_.Add(std::move(host));
      offloaded_.push_back(value);
    }
  }

  Use FindUse(int block, int storage, bool written_only) const {
    return ebb::FindUse(draft_.microbatch[block], storage, written_only);
  }

  DraftOperand BindWhole(int slot, int storage, bool written) const {
    return ebb::BindWhole(slot, storage,
                          draft_.TypeOf(draft_.storages[storage].key), written);
  }

  DraftInstruction Start(InstructionKind kind, Phase phase,
                         const Offloaded& value, GroupOf group,
                         Iterations iterations) const {
    DraftInstruction instruction;
    instruction.kind = kind;
    instruction.phase = phase;
    instruction.name = draft_.storages[value.made].name;
    instruction.layer_in_group = value.key.layer_in_group;
    instruction.group = group;
    instruction.iterations = iterations;
    return instruction;
  }

  DraftInstruction Offload(const Offloaded& value) const {
    DraftInstruction copy = Start(InstructionKind::kOffload, Phase::kForward,
                                  value, GroupOf::kIteration, Iterations::kAll);
    copy.operands = {BindWhole(0, value.made, false),
                     BindWhole(1, value.host, true)};
    copy.allocates = {value.host};
    return copy;
  }

  DraftInstruction Prefetch(const Offloaded& value, GroupOf group,
                            Iterations iterations) const {
    DraftInstruction copy = Start(InstructionKind::kPrefetch, Phase::kBackward,
                                  value, group, iterations);
    copy.operands = {BindWhole(0, value.host, false),
                     BindWhole(1, value.prefetched, true)};
    copy.allocates = {value.prefetched};
    return copy;
  }

  // Ends the life of the copy's source: the place where the value was made, or
  // the copy in host memory.
  DraftInstruction Await(const Offloaded& value, Phase phase, GroupOf group,
                         Iterations iterations) const {
    DraftInstruction wait =
        Start(InstructionKind::kAwait, phase, value, group, iterations);
    wait.operands = {BindWhole(0, value.host, false)};
    wait.frees = {phase == Phase::kForward ? value.made : value.host};
    return wait;
  }

  absl::Status WriteOut(const Offloaded& value) {
    const int block = forward_[value.key.segment];
    const Use made = FindUse(block, value.made, /*written_only=*/true);
    if (!made.found) return Misplaced(value, "is not made by its segment");
    if (draft_.microbatch[block].count > 1) {
      insertions_[block].Add(made.begin, Order::kWait,
                             Await(value, Phase::kForward, GroupOf::kBefore,
                                   Iterations::kAllButFirst));
    }
    insertions_[block].Add(made.end, Order::kBegin, Offload(value));
    // The last group's, where the next segment makes its own, or at the end of
    // what follows.
    const int next = forward_[value.key.segment + 1];
    const int above = Above(value, Content::kValue);
    const Use next_made = FindUse(next, above, /*written_only=*/true);
    if (next_made.found && draft_.storages[above].home == Home::kStaged) {
      draft_.storages[above].same_place = value.made;
    }
    insertions_[next].Add(next_made.found
                              ? next_made.begin
                              : draft_.microbatch[next].instructions.size(),
                          Order::kWait,
                          Await(value, Phase::kForward, GroupOf::kLast,
                                OnceIn(next, Iterations::kFirst)));
    return absl::OkStatus();
  }

  // The input of a group is made by what runs before the group, and has to be
  // gone when the group makes the next one's.
  absl::Status WriteInputOut(const Offloaded& value) {
    const int segment = value.key.segment;
    const int before = segment == 0 ? embedding_ : forward_[segment - 1];
    const Use made = FindUse(before, value.made, /*written_only=*/true);
    StorageKey next = WithContent(value.key, Content::kValue);
    next.segment = segment + 1;
    const int block = forward_[segment];
    const Use next_made =
        FindUse(block, draft_.Find(next), /*written_only=*/true);
    if (!made.found || !next_made.found) {
      return Misplaced(value, "is not made where it should be");
    }
    insertions_[before].Add(made.end, Order::kBegin, Offload(value));
    insertions_[block].Add(
        next_made.begin, Order::kWait,
        Await(value, Phase::kForward, GroupOf::kIteration, Iterations::kAll));
    // A group finds its input where the one before has put it.
    if (Storage& next_input = draft_.storages[draft_.Find(next)];
        next_input.home == Home::kStaged) {
      next_input.same_place = value.made;
    }
    return absl::OkStatus();
  }

  absl::Status SortByReaders() {
    for (Offloaded& value : offloaded_) {
      value.read = FindUse(backward_[value.key.segment], value.prefetched,
                           /*written_only=*/false);
      for (size_t b = 0; b < draft_.microbatch.size(); ++b) {
        const int block = static_cast<int>(b);
        if ((block == backward_[value.key.segment]) !=
            FindUse(block, value.prefetched, false).found) {
          return Misplaced(value, "is read outside its segment's backward");
        }
      }
    }
    std::stable_sort(offloaded_.begin(), offloaded_.end(),
                     [](const Offloaded& a, const Offloaded& b) {
                       return a.read.begin < b.read.begin;
                     });
    return absl::OkStatus();
  }

  void WriteBack(const Offloaded& value) {
    const int index = backward_[value.key.segment];
    const DraftBlock& block = draft_.microbatch[index];
    if (block.count > 1) {
      const bool is_held_long = IsHeldLong(value.read, index);
      if (is_held_long) draft_.storages[value.prefetched].ring = 2;
      insertions_[index].Add(
          is_held_long ? 0 : value.read.end, Order::kBegin,
          Prefetch(value, GroupOf::kBefore, Iterations::kAllButLast));
    }
    insertions_[index].Add(
        value.read.begin, Order::kWait,
        Await(value, Phase::kBackward, GroupOf::kIteration, Iterations::kAll));
    // The last group's, the first to come back: where the segment above is done
    // with its own, or with the beginning of what runs before.
    const int before = backward_[value.key.segment + 1];
    size_t at = 0;
    for (const Content content :
         {Content::kValue, Content::kPrefetched, Content::kRecomputed}) {
      const int above = Above(value, content);
      const Use use = FindUse(before, above, /*written_only=*/false);
      if (!use.found || IsHeldLong(use, before)) continue;
      at = use.end;
      Storage& own = draft_.storages[value.prefetched];
      if (content == Content::kPrefetched && own.ring == 1) {
        own.same_place = above;
      }
    }
    insertions_[before].Add(
        at, Order::kBegin,
        Prefetch(value, GroupOf::kLast, OnceIn(before, Iterations::kLast)));
  }

  // The same value in the segment above, or -1.
  int Above(const Offloaded& value, Content content) const {
    StorageKey key = WithContent(value.key, content);
    ++key.segment;
    return draft_.Find(key);
  }

  bool IsHeldLong(const Use& use, int block) const {
    return 2 * (use.end - use.begin) >
           draft_.microbatch[block].instructions.size();
  }

  Iterations OnceIn(int block, Iterations iterations) const {
    return draft_.microbatch[block].count > 1 ? iterations : Iterations::kAll;
  }

  // A group hands its input's place on to the next group's, so all inputs of
  // groups that repeat are offloaded, or none.
  absl::Status CheckInputs() const {
    for (int s = 0; s < NumSegments(); ++s) {
      StorageKey key;
      key.value = draft_.graph->stream;
      key.segment = s;
      const bool is_staged =
          draft_.segments[s].input_format(*draft_.graph) != DType::kNone ||
          IsOffload(draft_.segments[s].input_decision(*draft_.graph));
      const int made = draft_.Find(key);
      EBB_CHECK(made >= 0);
      if (is_staged != (draft_.storages[made].home == Home::kStaged)) {
        return absl::InternalError(
            absl::StrCat("input of the groups of segment ", s,
                         " is encoded or offloaded, but backward does not "
                         "read it"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Misplaced(const Offloaded& value, const char* what) const {
    return absl::InternalError(
        absl::StrCat("offloaded value ", draft_.storages[value.made].name,
                     " of segment ", value.key.segment, " ", what));
  }

  Draft& draft_;
  std::vector<Insertions> insertions_;  // by block
  std::vector<int> forward_;            // by segment, and what follows them
  std::vector<int> backward_;           // by segment, and what precedes them
  int embedding_ = -1;
  std::vector<Offloaded> offloaded_;
};

}  // namespace

absl::Status InsertCopies(Draft& draft) { return Inserter(draft).Run(); }

}  // namespace ebb
