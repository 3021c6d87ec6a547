// Where every storage of a microbatch lies in the step and the host arena.
//
// Records of saved activations lie one after the other in order of layers, each
// segment with its own record size; a group's input is first in its record, so
// "the next group's input" is one stride further also where the next segment
// begins. Within a record, what dies last in backward lies lowest: the space
// that backward frees grows from the top and joins the free space above. The
// other storages are placed around the records, lowest fit first, in several
// orders; the best one counts. The host and the disk arena hold records alone.
//
// Placing storages with lifetimes is NP-hard (Garey & Johnson 1979, SR2:
// dynamic storage allocation); the sum in use at the worst line is a lower
// bound, and the search stops when it is met.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/program/draft.h"

namespace ebb {

// A byte range that must not be shared while in use: lines first..last, both
// included.
struct PlacedRange {
  int64_t offset = 0;
  int64_t bytes = 0;
  int first_line = 0;
  int last_line = 0;
};

// Finds offsets (multiples of kAlignment, at least `floor`) for `ranges`, whose
// own offsets are overwritten, such that no two that are in use at the same
// line overlap, nor any with an obstacle. Returns the end of the highest range
// or obstacle. Deterministic. Cost: tries x ranges^2.
int64_t PlaceRanges(std::vector<PlacedRange>& ranges,
                    std::span<const PlacedRange> obstacles, int64_t floor);

// Largest sum of bytes in use at any line, plus `floor`.
int64_t LargestUse(std::span<const PlacedRange> ranges,
                   std::span<const PlacedRange> obstacles, int64_t floor);

struct Layout {
  // By storage: offset in its arena of the storage, or of its first group's
  // record entry.
  std::vector<int64_t> offset;
  // By instruction line of the microbatch: offset of its workspace.
  std::vector<int64_t> workspace;
  // By segment, and one more for the end: start of its records; and the size
  // of one record.
  std::vector<int64_t> record_base;
  std::vector<int64_t> record_bytes;
  int64_t step_bytes = 0;
  // The same of an arena that holds records alone.
  struct Records {
    std::vector<int64_t> base;
    std::vector<int64_t> bytes;
    int64_t arena_bytes = 0;
  };
  Records host;
  Records disk;
};

Layout LayOut(const Draft& draft);

}  // namespace ebb
