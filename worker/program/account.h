// What a program uses and does, by a walk over its instructions.
#pragma once

#include "absl/status/statusor.h"
#include "worker/program/program.h"

namespace ebb {

// Walks one step (one microbatch of it: all are alike) as the executor does and
// counts bytes in use by class and FLOPs. The classes are those of the moment
// of the largest sum; the first such moment counts. Iterations of a block that
// are proven to do what the one before did are not walked one by one.
// Errors: INTERNAL if the program allocates what is in use, frees what is not,
// or lets two storages in use overlap.
absl::StatusOr<ProgramAccount> AccountFor(const Program& program);

}  // namespace ebb
