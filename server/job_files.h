// The files that a job names, looked at before the job is accepted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job_service.pb.h"
#include "proto/spec.pb.h"

namespace ebb {

// What the files of a spec are like.
struct JobFiles {
  // What is wrong, in the spec's terms.
  std::vector<v1::Violation> violations;
  // Of the status of the violations.
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  // The directory of weights that checkpoint.init_from stands for: itself, or
  // the newest complete checkpoint in it. Empty without one.
  std::string init_from;
};

// Opens training and validation data and the weights of init_from as the job's
// worker will, tries the directory for values on disk, and compares the weights
// with the model's (configuration, names and shapes; no tensor is read). `full`
// has its defaults; `wrong` are the mistakes of its fields: files that they
// name are not looked at, and what depends on them is not held against a file.
JobFiles CheckJobFiles(const v1::JobSpec& full,
                       const std::vector<v1::Violation>& wrong);

}  // namespace ebb
