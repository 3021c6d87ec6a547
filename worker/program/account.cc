#include "worker/program/account.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "worker/program/arena_use.h"

namespace ebb {
namespace {

// Blocks of fewer iterations are walked one by one.
constexpr int64_t kFewestToSkip = 6;

// Bytes in use in the step arena at a moment.
struct Use {
  int64_t sum = 0;
  MemoryBytes bytes;

  void Add(const Use& other, int64_t sign) {
    sum += sign * other.sum;
    for (int c = 0; c < kNumMemoryClasses; ++c) {
      bytes.bytes[c] += sign * other.bytes.bytes[c];
    }
  }
};

// A place in the step arena that a block names, and what was there before and
// after an iteration.
struct Place {
  Address address;
  int64_t bytes = 0;
  std::optional<InUse> start, end;
};

// What one iteration of a block did; uses are relative to its start.
struct Pattern {
  std::vector<Place> moving;  // places that differ by iteration
  Use peak;
  int64_t saved = 0;
};

// The places that the block names, each once, by stride and base. Of several
// sizes at one place the largest.
std::vector<Place> PlacesOf(const Block& block) {
  std::vector<Place> places;
  for (const Buffer& buffer : block.buffers) {
    if (buffer.address.arena != Arena::kStep) continue;
    places.push_back({buffer.address, buffer.bytes, {}, {}});
  }
  const auto key = [](const Place& place) {
    return std::tuple(place.address.stride, place.address.base,
                      place.address.ring, place.address.phase, -place.bytes);
  };
  std::sort(places.begin(), places.end(),
            [&](const Place& a, const Place& b) { return key(a) < key(b); });
  const auto is_same = [](const Place& a, const Place& b) {
    return a.address == b.address;
  };
  places.erase(std::unique(places.begin(), places.end(), is_same),
               places.end());
  return places;
}

// Iteration `n` in order of running.
int64_t Iteration(const Block& block, int64_t n) {
  return block.descending ? block.count - 1 - n : n;
}

// Whether no two places of different strides share bytes, each in whatever
// iteration, from the second to the last but one. Of a ring, all its places
// count; two rings must stay apart unless they are one.
bool StayApart(const Block& block, const std::vector<Place>& places) {
  struct Swept {
    int64_t begin, end, stride;
    int64_t ring_base;  // -1: no ring
  };
  std::vector<Swept> swept;
  const int64_t first = Iteration(block, 1);
  const int64_t last = Iteration(block, block.count - 2);
  for (const Place& place : places) {
    const Address& address = place.address;
    if (address.ring > 0) {
      swept.push_back(
          {address.base,
           address.base + (address.ring - 1) * address.stride + place.bytes,
           address.stride, address.base});
      continue;
    }
    const auto [low, high] = std::minmax({address.At(first), address.At(last)});
    swept.push_back({low, high + place.bytes, address.stride, -1});
  }
  std::sort(swept.begin(), swept.end(),
            [](const Swept& a, const Swept& b) { return a.begin < b.begin; });
  for (size_t n = 0; n < swept.size(); ++n) {
    for (size_t m = n + 1; m < swept.size() && swept[m].begin < swept[n].end;
         ++m) {
      if (swept[m].stride != swept[n].stride ||
          swept[m].ring_base != swept[n].ring_base) {
        return false;
      }
    }
  }
  return true;
}

class Walk {
 public:
  explicit Walk(const Program& program)
      : program_(program), arena_(program.step_bytes) {}

  absl::StatusOr<ProgramAccount> Run() {
    for (size_t b = 0; b < program_.blocks.size(); ++b) {
      const Block& block = program_.blocks[b];
      const bool per_microbatch =
          static_cast<int>(b) >= program_.begin_microbatch &&
          static_cast<int>(b) < program_.end_microbatch;
      const double times = per_microbatch ? program_.num_microbatches : 1;
      // Of a block for one row, one iteration alone runs.
      CountWork(block, block.one_row ? times : times * block.count);
      EBB_RETURN_IF_ERROR(RunBlock(block));
    }
    EBB_ASSIGN_OR_RETURN(account_.host_bytes,
                         WalkCopies(Arena::kHost, program_.host_bytes));
    EBB_ASSIGN_OR_RETURN(account_.disk_bytes,
                         WalkCopies(Arena::kDisk, program_.disk_bytes));
    account_.largest_use_bytes = largest_.sum;
    account_.host_bytes += StateBytes(program_, Arena::kHostState).Sum();
    account_.disk_bytes += StateBytes(program_, Arena::kDiskState).Sum();
    account_.memory = largest_.bytes;
    const MemoryBytes state = StateBytes(program_, Arena::kState);
    for (int c = 0; c < kNumMemoryClasses; ++c) {
      account_.memory.bytes[c] += state.bytes[c];
    }
    account_.peak_bytes = program_.state_bytes + program_.step_bytes;
    account_.memory[MemoryClass::kFragmentation] =
        account_.peak_bytes - account_.memory.Sum();
    return account_;
  }

 private:
  void CountWork(const Block& block, double times) {
    for (const Instruction& instruction : block.instructions) {
      if (instruction.phase == Phase::kRecompute) {
        account_.num_recompute += block.count;
      }
      if (instruction.phase == Phase::kUpdate) continue;
      account_.recompute_flops += times * instruction.recompute_flops;
      account_.model_flops +=
          times * (instruction.flops - instruction.recompute_flops);
    }
  }

  // Walks the first iterations and the last one instruction by instruction;
  // those between are taken as a whole where they are proven to do the same.
  absl::Status RunBlock(const Block& block) {
    std::optional<Pattern> pattern;
    for (int64_t n = 0; n < block.count; ++n) {
      const int64_t i = Iteration(block, n);
      if (n == 1 && block.count >= kFewestToSkip) {
        EBB_RETURN_IF_ERROR(Learn(block, i, pattern));
      } else if (!pattern.has_value() || n == block.count - 1 ||
                 !Repeat(*pattern, i)) {
        EBB_RETURN_IF_ERROR(RunIteration(block, i));
      }
    }
    return absl::OkStatus();
  }

  // An arena off the device by itself: copies alone use it. Returns the largest
  // sum in use.
  absl::StatusOr<int64_t> WalkCopies(Arena arena, int64_t arena_bytes) const {
    int64_t largest = 0;
    if (arena_bytes == 0) return largest;
    ArenaUse use(arena_bytes, arena);
    for (const Block& block : program_.blocks) {
      for (int64_t n = 0; n < block.count; ++n) {
        const int64_t i = Iteration(block, n);
        for (const Instruction& instruction : block.instructions) {
          if (!IsCopy(instruction.kind)) continue;
          absl::Status status = use.Begin(block, instruction, i);
          largest = std::max(largest, use.sum());
          if (status.ok()) status = use.End(block, instruction, i);
          if (!status.ok()) {
            return Annotate(status, absl::StrCat(block.name, " ", i, ": ",
                                                 instruction.name));
          }
        }
      }
    }
    return largest;
  }

  Use Now() const { return {arena_.sum(), arena_.bytes()}; }

  absl::Status RunIteration(const Block& block, int64_t i) {
    iteration_peak_ = {};
    iteration_saved_ = 0;
    for (const Instruction& instruction : block.instructions) {
      absl::Status status = arena_.Begin(block, instruction, i);
      if (arena_.sum() > iteration_peak_.sum) iteration_peak_ = Now();
      iteration_saved_ =
          std::max(iteration_saved_, arena_.bytes()[MemoryClass::kSaved]);
      if (status.ok()) status = arena_.End(block, instruction, i);
      if (!status.ok()) {
        return Annotate(
            status, absl::StrCat(block.name, " ", i, ": ", instruction.name));
      }
    }
    Count(iteration_peak_, iteration_saved_);
    return absl::OkStatus();
  }

  void Count(const Use& peak, int64_t saved) {
    if (peak.sum > largest_.sum) largest_ = peak;
    account_.saved_bytes = std::max(account_.saved_bytes, saved);
  }

  // Walks iteration i, the second, and writes down what it did, for the third
  // to the last but one. No pattern if those may differ from it.
  //
  // They do the same if they find the same. Repeat looks at the moving places,
  // and at what lies in the way of a storage that comes to life there. Fixed
  // places are as the second iteration found them if it left them so. Of two
  // places with one stride, fixed ones too, an overlap shows in the second
  // iteration; those of different strides must stay apart wherever they go.
  absl::Status Learn(const Block& block, int64_t i,
                     std::optional<Pattern>& pattern) {
    std::vector<Place> places = PlacesOf(block);
    for (Place& place : places) {
      place.start = arena_.Find(place.address.At(i));
    }
    const Use start = Now();
    EBB_RETURN_IF_ERROR(RunIteration(block, i));
    if (!StayApart(block, places)) return absl::OkStatus();
    Pattern learned;
    for (Place& place : places) {
      place.end = arena_.Find(place.address.At(i));
      if (place.address.stride != 0) {
        learned.moving.push_back(place);
      } else if (place.start != place.end) {
        return absl::OkStatus();
      }
    }
    learned.peak = iteration_peak_;
    learned.peak.Add(start, -1);
    learned.saved = iteration_saved_ - start.bytes[MemoryClass::kSaved];
    pattern = std::move(learned);
    return absl::OkStatus();
  }

  // Whether iteration i finds at `place` what the pattern's did, and nothing in
  // the way.
  bool IsAsLearned(const Place& place, int64_t i) const {
    const int64_t offset = place.address.At(i);
    return place.start.has_value() ? place.start->bytes == place.bytes &&
                                         arena_.Find(offset) == place.start
                                   : arena_.IsFree(offset, place.bytes);
  }

  // Does in iteration i what the pattern's did, if it finds the same; else
  // changes nothing and returns false.
  bool Repeat(const Pattern& pattern, int64_t i) {
    for (const Place& place : pattern.moving) {
      if (!IsAsLearned(place, i)) return false;
    }
    Use peak = Now();
    peak.Add(pattern.peak, 1);
    Count(peak, arena_.bytes()[MemoryClass::kSaved] + pattern.saved);
    for (const Place& place : pattern.moving) {
      arena_.Replace(place.address.At(i), place.start, place.end);
    }
    return true;
  }

  const Program& program_;
  ArenaUse arena_;
  Use iteration_peak_;  // of the iteration that was walked last
  int64_t iteration_saved_ = 0;
  Use largest_;
  ProgramAccount account_;
};

}  // namespace

absl::StatusOr<ProgramAccount> AccountFor(const Program& program) {
  return Walk(program).Run();
}

}  // namespace ebb
