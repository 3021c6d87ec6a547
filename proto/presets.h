// Named model shapes for model.preset.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/spec.pb.h"

namespace ebb {

// In the order in which people should see them: family by family, small to
// large.
std::vector<std::string> PresetNames();

// The fields that a preset sets (preset itself is not one); null if there is no
// such preset.
const v1::ModelSpec* FindPreset(absl::string_view name);

}  // namespace ebb
