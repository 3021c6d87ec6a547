// How long every storage of a draft lives, and which result takes over the
// storage of something it reads for the last time.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "worker/program/draft.h"

namespace ebb {

// Numbers the lines of the microbatch, sets home, class and life of every
// storage used there, the `takes_over` of results in place, and the lists
// `allocates`, `frees` and `replaces` of every instruction. `training`: layer
// inputs are kept for backward.
// Errors: INTERNAL if the stream (or its gradient) is not updated in place
// where a block hands it to its next iteration.
absl::Status AnalyzeLiveness(Draft& draft, bool training,
                             const Backend& backend);

}  // namespace ebb
