// What copies of offloaded values take on this machine, beside ops, and what
// they take from those.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace ebb {

// Calls `run`, which runs ops on the calling thread and its team, alone and
// with copies beside it, made without pause by a thread of their own as those
// of a job are. Returns seconds by CopyKey and CopyLossKey: of copies to host
// memory and, if a file can be made in `directory`, of those to disk, as of
// `place`. Takes 128 MiB of memory, 32 MiB of disk, and ten times as long as
// `run` or some tenths of a second, whichever is more. Errors: those of `run`;
// RESOURCE_EXHAUSTED without the memory.
absl::StatusOr<std::map<std::string, double>> MeasureCopies(
    Device& device, const std::string& directory, const std::string& place,
    const std::function<absl::Status()>& run);

}  // namespace ebb
