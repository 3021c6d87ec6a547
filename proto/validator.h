// Checks a job spec, however it came: read from text or sent by a client as a
// raw message. All mistakes at once. Pure: no file, no device.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job_service.pb.h"
#include "proto/spec.pb.h"

namespace ebb {

// Checks unknown wire fields and enum numbers, bounds of every field, required
// fields, texts, absolute paths, the rules that join several fields, and what
// is not built yet.
// Errors: INVALID_ARGUMENT with all violations; UNIMPLEMENTED if all of them
// are things that are not built yet.
absl::Status ValidateSpec(const v1::JobSpec& spec);

// One mistake. not_built: the value is right but this version cannot do it.
struct SpecMistake {
  v1::Violation violation;
  bool not_built = false;
};

// What FindSpecMistakes leaves out.
struct SpecExemptions {
  bool relative_paths = false;
  // Paths of fields whose text could not be read ("optimizer.lr"; a section
  // stands for all below it): neither they nor rules that need them are
  // checked.
  std::set<std::string> unreadable;
};

// The heart of ValidateSpec. Violations have no file and line.
std::vector<SpecMistake> FindSpecMistakes(const v1::JobSpec& spec,
                                          const SpecExemptions& exemptions);

// The status of mistakes; OK for none.
absl::Status SpecMistakesStatus(const std::vector<SpecMistake>& mistakes);

}  // namespace ebb
