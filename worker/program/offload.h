// The copies of offloaded values, put between the instructions of a draft.
//
// An offloaded value has three storages: where forward makes it, its copy in
// host memory, and where backward reads it. The first has one place for all
// groups of a segment: the copy of group i begins when the value is made and
// is awaited before group i + 1 makes its own, one iteration later. So a
// segment holds about what one group saves, whatever its number of groups.
// Towards backward, the copy of group i - 1 begins behind the last reader of
// group i, into the same place; where that leaves little of an iteration until
// the first reader (the input of a group that is computed again), there are two
// places in turn and the copy begins with the iteration. The copies of a
// segment's last group are awaited, and begin, in the block of the neighbour:
// where that makes, or is done with, its own value, which then has the same
// place.
//
//   forward, iteration i              backward, iteration i
//     await   x i-1                     await    x i
//     compute x i                       compute  d(x i)
//     offload x i                       prefetch x i-1
#pragma once

#include "absl/status/status.h"
#include "worker/program/draft.h"

namespace ebb {

// Adds the copies of all values that backward reads as prefetched. Runs behind
// FuseRows: no copy comes between the instructions of a row loop.
// Errors: INTERNAL if an offloaded input of a group is not read by backward, or
// a value is used in a block of another segment.
absl::Status InsertCopies(Draft& draft);

}  // namespace ebb
