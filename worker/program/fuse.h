// The fusion pass: adjacent instructions that treat every row alone and hand
// values to one another become one row loop (kernels/row_loop.h), which reads
// and writes those values while they are in the cache; one that treats every
// element alone becomes the tail of the matrix product before it. The kernels
// stay the same, so fusion changes no bit.
#pragma once

#include "kernels/backend.h"
#include "worker/program/draft.h"

namespace ebb {

// Marks loops and tails. Comes before liveness. Only for backends that run them
// (cpu).
void Fuse(Draft& draft, const Backend& backend);

// Gives intermediates of loops that nobody else uses a place in the loop's
// scratch instead of storage of their own. Comes within liveness, when it is
// known which results take over another storage and so cost nothing.
// `can_move`: by storage.
void MoveToScratch(DraftBlock& block, const std::vector<bool>& can_move,
                   Draft& draft, const Backend& backend);

// One past the last instruction of the loop, or tail, that begins at `first`.
size_t EndOfLoop(const DraftBlock& block, size_t first);

}  // namespace ebb
