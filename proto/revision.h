// Which source this was built from.
#pragma once

namespace ebb {

// The commit in 40 hex digits, with "-dirty" behind them if files that git
// follows were changed since; "unknown" outside a checkout.
extern const char* const kRevision;

}  // namespace ebb
