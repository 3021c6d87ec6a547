// The nearest of some names, for "did you mean".
#pragma once

#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace ebb {

// Edits (insert, delete, replace, swap of neighbours) from a to b.
int EditDistance(absl::string_view a, absl::string_view b);

// The name that takes fewest edits, hyphens counting as underscores and capital
// letters as small; empty if even it shares less than half with `name`.
std::string NearestName(absl::string_view name,
                        std::span<const std::string> names);

}  // namespace ebb
