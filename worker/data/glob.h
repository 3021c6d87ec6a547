// Names of files by wildcards: '*' (any run of characters), '?' (any one),
// '[a-z]' and '[!a-z]' (one of a set, one outside it), '\' takes the next
// character as it is. They work within every part of a path and never match
// '/'; a name that starts with '.' is matched only by a part that does, too.
//
// Own matcher: fnmatch(3) takes exponential time on a row of stars, and a
// pattern comes from a client.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ebb {

// Whether one name (no '/') matches one part of a pattern. Takes at most
// pattern.size() * name.size() steps. A '[' without its ']' stands for itself.
bool MatchesWildcards(absl::string_view pattern, absl::string_view name);

// Returns the paths that `pattern` names, sorted byte by byte: the path itself
// if there is such a file (whatever characters it holds), else all matches,
// else nothing.
// Errors: INVALID_ARGUMENT if a directory on the way cannot be read or more
// than a million names would have to be looked at.
absl::StatusOr<std::vector<std::string>> ExpandGlob(absl::string_view pattern);

}  // namespace ebb
