// Writes a job spec in the language of specs, so that what Ebb shows can be
// submitted again.
#pragma once

#include <string>

#include "proto/spec.pb.h"

namespace ebb {

// JSON with every field that is set: choices as lower-case words, sizes as
// plain bytes, durations as text, doubles so that they read back exactly.
// indent -1: one line. ReadSpec of it gives the same message.
// REQUIRES: spec passes ValidateSpec (but for relative paths).
std::string SpecToJson(const v1::JobSpec& spec, int indent = -1);

}  // namespace ebb
