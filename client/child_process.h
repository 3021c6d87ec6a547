// Runs a program of ours and reads what it prints.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ebb {

// What `program` writes to standard output until it ends; its standard error
// is dropped.
// Errors: NOT_FOUND if it cannot be started, INTERNAL for another exit code
// than 0 or a signal, DEADLINE_EXCEEDED (it is killed then),
// RESOURCE_EXHAUSTED above 16 MiB.
absl::StatusOr<std::string> ReadProgramOutput(
    const std::string& program, const std::vector<std::string>& arguments,
    absl::Duration deadline);

}  // namespace ebb
