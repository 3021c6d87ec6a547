// Work split among OpenMP's thread team. The split is static: contiguous
// ranges that depend on sizes and on the number of threads alone, so that a
// kernel's result never depends on timing.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace ebb::cpu {

// Threads that the next parallel region gets: one within a region.
inline int NumThreads() {
  if (omp_in_parallel()) return 1;
  return std::min(omp_get_max_threads(), omp_get_thread_limit());
}

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

// Part `index` of `num_parts` of [0, count), cut at multiples of `grain`.
inline Range PartOf(int64_t count, int64_t grain, int index, int num_parts) {
  const int64_t num_grains = (count + grain - 1) / grain;
  const int64_t begin = num_grains * index / num_parts * grain;
  const int64_t end = num_grains * (index + 1) / num_parts * grain;
  return {std::min(begin, count), std::min(end, count)};
}

// Calls body(begin, end, thread) on disjoint ranges that cover [0, count), cut
// at multiples of `grain`, with thread < max_threads. A count of one grain
// runs on the calling thread.
template <typename Body>
void ParallelFor(int64_t count, int64_t grain, int max_threads,
                 const Body& body) {
  const int64_t num_grains = (count + grain - 1) / grain;
  const int num_threads = static_cast<int>(
      std::min<int64_t>({num_grains, max_threads, NumThreads()}));
  if (num_threads <= 1) {
    if (count > 0) body(int64_t{0}, count, 0);
    return;
  }
#pragma omp parallel num_threads(num_threads)
  {
    // A team may come out smaller than asked for: then the parts go round.
    const int team = omp_get_num_threads();
    for (int part = omp_get_thread_num(); part < num_threads; part += team) {
      const Range range = PartOf(count, grain, part, num_threads);
      if (range.begin < range.end) body(range.begin, range.end, part);
    }
  }
}

template <typename Body>
void ParallelFor(int64_t count, int64_t grain, const Body& body) {
  ParallelFor(count, grain, NumThreads(),
              [&](int64_t begin, int64_t end, int) { body(begin, end); });
}

// Elements of an elementwise loop that are worth a thread: some microseconds.
constexpr int64_t kElementGrain = 16 * 1024;
// Rows of `width` elements that are worth a thread.
constexpr int64_t RowGrain(int64_t width) {
  return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, width));
}

}  // namespace ebb::cpu
