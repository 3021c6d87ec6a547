#include "worker/program/arena_layout.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "kernels/philox.h"

namespace ebb {
namespace {

// Random orders tried after the three systematic ones. The graphs here meet the
// bound within a few; the number limits the time on those that cannot.
constexpr int kRandomOrders = 48;

bool InUseTogether(const PlacedRange& a, const PlacedRange& b) {
  return a.first_line <= b.last_line && b.first_line <= a.last_line;
}

// Places `ranges` in the given order, each as low as it goes. Gives up when the
// end reaches `limit`, and returns at least that.
int64_t PlaceInOrder(std::vector<PlacedRange>& ranges,
                     std::span<const int> order,
                     std::span<const PlacedRange> obstacles, int64_t floor,
                     int64_t limit) {
  const auto is_lower = [](const PlacedRange& a, const PlacedRange& b) {
    return a.offset < b.offset;
  };
  std::vector<PlacedRange> placed(obstacles.begin(), obstacles.end());
  placed.reserve(obstacles.size() + order.size());
  std::sort(placed.begin(), placed.end(), is_lower);
  int64_t end = floor;
  for (const PlacedRange& obstacle : obstacles) {
    end = std::max(end, obstacle.offset + obstacle.bytes);
  }
  for (const int i : order) {
    PlacedRange& range = ranges[i];
    int64_t offset = floor;
    for (const PlacedRange& other : placed) {
      if (offset + range.bytes <= other.offset) break;
      if (!InUseTogether(range, other)) continue;
      offset = std::max(offset, other.offset + other.bytes);
    }
    range.offset = offset;
    end = std::max(end, offset + range.bytes);
    if (end >= limit) return end;
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), range, is_lower), range);
  }
  return end;
}

// Swaps a share of the order at random; a pure function of `round`.
void Perturb(std::vector<int>& order, int round) {
  const int size = static_cast<int>(order.size());
  if (size < 2) return;
  const int num_swaps = 1 + size / 8;
  for (int i = 0; i < num_swaps; ++i) {
    const uint64_t draw =
        philox::Mix(static_cast<uint64_t>(round) * 1000003u + i);
    std::swap(order[static_cast<uint32_t>(draw) % size],
              order[static_cast<uint32_t>(draw >> 32) % size]);
  }
}

}  // namespace

int64_t LargestUse(std::span<const PlacedRange> ranges,
                   std::span<const PlacedRange> obstacles, int64_t floor) {
  std::map<int, int64_t>
      change;  // line -> bytes that begin less those that end
  for (const auto& list : {ranges, obstacles}) {
    for (const PlacedRange& range : list) {
      change[range.first_line] += range.bytes;
      change[range.last_line + 1] -= range.bytes;
    }
  }
  int64_t use = 0;
  int64_t largest = 0;
  for (const auto& [line, bytes] : change) {
    use += bytes;
    largest = std::max(largest, use);
  }
  return floor + largest;
}

int64_t PlaceRanges(std::vector<PlacedRange>& ranges,
                    std::span<const PlacedRange> obstacles, int64_t floor) {
  const int64_t bound = LargestUse(ranges, obstacles, floor);
  std::vector<int> by_size(ranges.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::vector<int> by_line = by_size;
  std::vector<int> by_area = by_size;
  std::stable_sort(by_size.begin(), by_size.end(), [&](int a, int b) {
    return ranges[a].bytes > ranges[b].bytes;
  });
  std::stable_sort(by_line.begin(), by_line.end(), [&](int a, int b) {
    return ranges[a].first_line < ranges[b].first_line;
  });
  const auto area = [&](int i) {
    return static_cast<double>(ranges[i].bytes) *
           (ranges[i].last_line - ranges[i].first_line + 1);
  };
  std::stable_sort(by_area.begin(), by_area.end(),
                   [&](int a, int b) { return area(a) > area(b); });

  std::vector<PlacedRange> best;
  int64_t best_end = std::numeric_limits<int64_t>::max();
  std::vector<int> best_order;
  const auto attempt = [&](const std::vector<int>& order) {
    std::vector<PlacedRange> candidate = ranges;
    const int64_t end =
        PlaceInOrder(candidate, order, obstacles, floor, best_end);
    if (end >= best_end) return;
    best = std::move(candidate);
    best_end = end;
    best_order = order;
  };
  if (ranges.empty()) {
    return PlaceInOrder(ranges, by_size, obstacles, floor, best_end);
  }
  for (const std::vector<int>* order : {&by_size, &by_area, &by_line}) {
    attempt(*order);
    if (best_end <= bound) break;
  }
  for (int round = 0; round < kRandomOrders && best_end > bound; ++round) {
    std::vector<int> order = best_order;
    Perturb(order, round);
    attempt(order);
  }
  ranges = std::move(best);
  return best_end;
}

namespace {

// Lines from the first that uses the segment's records to the last.
PlacedRange RecordLines(const Draft& draft, int segment,
                        const std::vector<int>& entries) {
  PlacedRange lines{0, 0, draft.storages[entries[0]].first_line,
                    draft.storages[entries[0]].last_line};
  for (const int i : entries) {
    lines.first_line = std::min(lines.first_line, draft.storages[i].first_line);
    lines.last_line = std::max(lines.last_line, draft.storages[i].last_line);
  }
  for (const DraftBlock& block : draft.microbatch) {
    if (block.segment != segment) continue;
    lines.first_line = std::min(lines.first_line, block.first_line);
    lines.last_line = std::max(
        lines.last_line,
        block.first_line + static_cast<int>(block.instructions.size()) - 1);
  }
  return lines;
}

// Copies off the device: one record a group, one segment after the other, the
// group's input first.
Layout::Records LayOutRecords(const Draft& draft, Home home,
                              std::vector<int64_t>& offset) {
  const int num_segments = static_cast<int>(draft.segments.size());
  Layout::Records records;
  for (int s = 0; s < num_segments; ++s) {
    const int64_t base = records.arena_bytes;
    int64_t record = 0;
    for (const bool input : {true, false}) {
      for (size_t i = 0; i < draft.storages.size(); ++i) {
        const Storage& storage = draft.storages[i];
        if (storage.home != home || storage.key.segment != s ||
            draft.IsGroupInput(storage.key) != input) {
          continue;
        }
        offset[i] = base + record;
        record += storage.bytes;
      }
    }
    records.base.push_back(base);
    records.bytes.push_back(record);
    records.arena_bytes += draft.segments[s].count * record;
  }
  return records;
}

}  // namespace

Layout LayOut(const Draft& draft) {
  const int num_storages = static_cast<int>(draft.storages.size());
  const int num_segments = static_cast<int>(draft.segments.size());
  Layout layout;
  layout.offset.assign(num_storages, 0);
  std::vector<PlacedRange> obstacles;

  // Records. Segment num_segments holds the last layer's output alone.
  int64_t base = draft.fixed_step_bytes;
  for (int s = 0; s <= num_segments; ++s) {
    std::vector<int> entries;
    for (int i = 0; i < num_storages; ++i) {
      const Storage& storage = draft.storages[i];
      if (storage.home == Home::kRecord && storage.key.segment == s) {
        entries.push_back(i);
      }
    }
    const auto is_input = [&](int i) {
      return draft.IsGroupInput(draft.storages[i].key);
    };
    std::stable_sort(entries.begin(), entries.end(), [&](int a, int b) {
      if (is_input(a) != is_input(b)) return is_input(a);
      return draft.storages[a].last_line > draft.storages[b].last_line;
    });
    int64_t record = 0;
    for (int i : entries) {
      layout.offset[i] = base + record;
      record += draft.storages[i].bytes;
    }
    const int count = s < num_segments ? draft.segments[s].count : 1;
    layout.record_base.push_back(base);
    layout.record_bytes.push_back(record);
    const int64_t below = (count - 1) * record;
    for (int i : entries) {
      const Storage& storage = draft.storages[i];
      obstacles.push_back({layout.offset[i] + below, storage.bytes,
                           storage.placed_from, storage.last_line});
    }
    if (below > 0 && !entries.empty()) {
      // All groups but the last.
      PlacedRange lower = RecordLines(draft, s, entries);
      lower.offset = base;
      lower.bytes = below;
      obstacles.push_back(lower);
    }
    base += count * record;
  }

  // Everything else: storages in place of one another are one range.
  std::vector<PlacedRange> ranges;
  std::vector<int> range_of(num_storages, -1);
  for (int i = 0; i < num_storages; ++i) {
    const Storage& storage = draft.storages[i];
    if (storage.home == Home::kStaged) {
      if (storage.same_place >= 0) continue;  // below
      range_of[i] = static_cast<int>(ranges.size());
      ranges.push_back({0, storage.ring * storage.bytes, storage.placed_from,
                        storage.placed_until});
      continue;
    }
    if (storage.home != Home::kTemporary || storage.first_line < 0 ||
        storage.takes_over >= 0) {
      continue;
    }
    range_of[i] = static_cast<int>(ranges.size());
    ranges.push_back(
        {0, storage.bytes, storage.placed_from, storage.last_line});
  }
  for (int i = 0; i < num_storages; ++i) {
    const Storage& storage = draft.storages[i];
    if (storage.home != Home::kStaged || storage.same_place < 0) continue;
    int origin = i;
    while (draft.storages[origin].same_place >= 0) {
      origin = draft.storages[origin].same_place;
    }
    range_of[i] = range_of[origin];
    PlacedRange& range = ranges[range_of[i]];
    range.first_line = std::min(range.first_line, storage.placed_from);
    range.last_line = std::max(range.last_line, storage.placed_until);
  }
  for (int i = 0; i < num_storages; ++i) {
    int origin = i;
    while (draft.storages[origin].takes_over >= 0) {
      origin = draft.storages[origin].takes_over;
    }
    if (range_of[origin] < 0) continue;
    range_of[i] = range_of[origin];
    PlacedRange& range = ranges[range_of[i]];
    range.last_line = std::max(range.last_line, draft.storages[i].last_line);
  }
  std::vector<int> workspace_of;
  int line = 0;
  for (const DraftBlock& block : draft.microbatch) {
    for (const DraftInstruction& instruction : block.instructions) {
      workspace_of.push_back(-1);
      if (instruction.workspace_bytes > 0) {
        workspace_of.back() = static_cast<int>(ranges.size());
        ranges.push_back({0, instruction.workspace_bytes, line, line});
      }
      ++line;
    }
  }

  layout.host = LayOutRecords(draft, Home::kHost, layout.offset);
  layout.disk = LayOutRecords(draft, Home::kDisk, layout.offset);
  layout.step_bytes = PlaceRanges(ranges, obstacles, draft.fixed_step_bytes);
  for (int i = 0; i < num_storages; ++i) {
    if (range_of[i] >= 0) layout.offset[i] = ranges[range_of[i]].offset;
  }
  for (int range : workspace_of) {
    layout.workspace.push_back(range < 0 ? 0 : ranges[range].offset);
  }
  layout.step_bytes = std::max(layout.step_bytes, draft.update_step_bytes);
  // Scratch of the blocks outside the microbatch has the room above the fixed
  // part to itself.
  for (const auto* blocks : {&draft.begin, &draft.end}) {
    for (const DraftBlock& block : *blocks) {
      for (const DraftInstruction& instruction : block.instructions) {
        layout.step_bytes =
            std::max(layout.step_bytes,
                     draft.fixed_step_bytes + instruction.workspace_bytes);
      }
    }
  }
  return layout;
}

}  // namespace ebb
