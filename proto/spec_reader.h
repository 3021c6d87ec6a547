// Reads a job spec, YAML or JSON, into its message. One reader for both: events
// of yaml-cpp, with our own rules for scalars, driven by JobSpec's descriptor
// and its (rule) options. The language is described in proto/README.md.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/spec.pb.h"

namespace ebb {

// Largest text that ReadSpec takes.
inline constexpr size_t kMaxSpecBytes = 1 << 20;

// Absolute directories that relative paths stand for. An empty one leaves the
// paths of its source as they are.
struct SpecDirectories {
  std::string file;  // of the spec file (standard input: working directory)
  std::string sets;  // for --set: the working directory
};

// Reads text (called `file` in errors), applies sets ("optimizer.lr=1e-4": the
// value is YAML; a later one wins), makes paths absolute and checks everything
// that ValidateSpec checks; paths that stay relative are not held against it
// here. A text whose first character is `{` must be strict JSON.
// Errors: INVALID_ARGUMENT with all violations, each with file, line and column
// where known (file is "--set optimizer.lr" for a mistake in one);
// UNIMPLEMENTED if all of them are things that are not built yet.
absl::StatusOr<v1::JobSpec> ReadSpec(absl::string_view text,
                                     absl::string_view file,
                                     std::span<const std::string> sets,
                                     const SpecDirectories& directories = {});

// Where a field stands in a text, or in a --set.
struct FieldPlace {
  std::string file;
  int line = 0;
  int column = 0;
  // A scalar as it is written.
  std::optional<std::string> text;
};

// A spec as it was read, right or wrong.
struct SpecReading {
  // What could be read, with absolute paths.
  v1::JobSpec spec;
  // OK, or all mistakes as ReadSpec tells them.
  absl::Status status;
  // No error of syntax hides a part of the text.
  bool complete = false;
  // What the text is called.
  std::string file;
  // Of the fields and sections that are set, by path; "": the whole.
  std::map<std::string, FieldPlace> places;

  // Joins the mistakes that a coordinator found in `spec` to those of `status`,
  // in the order of the text and each with its place. Where the text has
  // mistakes, only what is found of fields that are set and right counts: the
  // rest follows from what could not be read. A status without violations
  // stands behind the mistakes of the text.
  absl::Status Join(const absl::Status& found) const;
};

// As ReadSpec, and gives what could be read of a wrong spec, too.
SpecReading ReadSpecWithPlaces(absl::string_view text, absl::string_view file,
                               std::span<const std::string> sets,
                               const SpecDirectories& directories = {});

// Reads sets of one section's fields ("memory"), without the rest of a spec:
// what they say, and where. The status tells of what cannot be read and of
// fields of other sections; bounds and rules are ValidateSpec's, which knows
// the whole.
SpecReading ReadSets(absl::string_view section,
                     std::span<const std::string> sets,
                     absl::string_view directory);

// Turns every relative path of the spec (fields with rule.path) into one under
// directory; empty paths stay empty.
// Errors: INVALID_ARGUMENT if directory is not absolute.
absl::Status MakePathsAbsolute(v1::JobSpec* spec, absl::string_view directory);

}  // namespace ebb
