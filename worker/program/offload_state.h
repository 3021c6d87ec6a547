// The copies of state that lies off the device, put into the update.
//
// What AdamW reads and writes of a parameter is brought to a place in the step
// arena, updated there, and taken back. A parameter outside the layers may be
// larger than all of a layer: it is cut into pieces of rows, each about as
// large as the largest parameter of a layer. Three places are taken in turn by
// the pieces in the order of their updates, so that one comes in and one goes
// out while the third is updated. The places lie above the gradients, where
// nothing else is in use after the last microbatch.
//
//   update, piece n
//     await     n - 2, going out
//     prefetch  n + 1
//     await     n, coming in
//     compute   adamw n
//     offload   n
#pragma once

#include "absl/status/status.h"
#include "worker/program/draft.h"

namespace ebb {

// Rewrites the blocks behind the microbatches in which state is used that lies
// off the device; without any it does nothing.
// Errors: INTERNAL if such a block does more than update parameters, or
// repeats with fewer than two of them.
absl::Status InsertStateCopies(Draft& draft);

}  // namespace ebb
