// The directory in which a job's ranks make their files of values that wait on
// disk (worker/runtime/disk_file.h), looked at before a plan is accepted that
// needs them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/spec.pb.h"

namespace ebb {

// Whether a file can be made in the directory; leaves none.
// Errors: NOT_FOUND if it is not there; FAILED_PRECONDITION if it is no
// directory or takes no files.
absl::Status CheckOffloadDirectory(const std::string& directory);

// The same for an effective memory section, and whether there is room for
// `bytes` more; without any, OK. `default_directory` stands for one that is not
// named, which must be there.
// Errors, with one violation, of memory.offload_dir: as above;
// RESOURCE_EXHAUSTED if there is no room.
absl::Status CheckOffloadRoom(const v1::MemorySpec& memory,
                              const std::string& default_directory,
                              int64_t bytes);

}  // namespace ebb
