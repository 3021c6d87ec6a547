// The version of this build.
#pragma once

namespace ebb {

// "0.1.0"
extern const char* const kVersion;

}  // namespace ebb
