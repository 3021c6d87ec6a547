// Our own rules for the scalars of specs: what a number, a size and a duration
// look like. Exact: no text passes through a rounded form on its way.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/duration.pb.h"

namespace ebb {

// A value, or what is wrong with its text.
template <typename T>
struct Scalar {
  T value = {};
  std::string rule;  // empty: fine
  std::string fix;

  bool ok() const { return rule.empty(); }
};

// Numbers: optional sign, decimal digits with an optional point, optional
// exponent. No leading zeros, underscores, hexadecimal, octal, sexagesimal,
// commas, nan or inf. Whole numbers may be written as 1e3 or 1000.0.
Scalar<int64_t> ParseInt64(absl::string_view text);
Scalar<uint64_t> ParseUint64(absl::string_view text);

// The double next to the text. What is too large or, not being 0, too small is
// refused. -0 is 0.
Scalar<double> ParseDouble(absl::string_view text);

// Plain bytes or a number with KiB, MiB, GiB or TiB; fractions of a byte are
// dropped: "1536", "1.5GiB".
Scalar<int64_t> ParseByteSize(absl::string_view text);

// A number with ms, s, m or h: "250ms", "1.5h". Exact to the nanosecond.
Scalar<google::protobuf::Duration> ParseDuration(absl::string_view text);

}  // namespace ebb
