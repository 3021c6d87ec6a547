// Resident memory of this process, as the kernel counts it.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ebb {

// Returns the bytes of anonymous and shared memory (RssAnon + RssShmem) that
// the process has resident: what it brought into memory itself, without mapped
// files, which the kernel may drop. Reads /proc/self/status.
// Errors: INTERNAL if a field is missing.
absl::StatusOr<int64_t> ResidentBytes();

// The same from the text of a status file.
absl::StatusOr<int64_t> ParseResidentBytes(absl::string_view status);

}  // namespace ebb
