// The files that a job names, looked at before the job is accepted.
#pragma once

#include "absl/status/status.h"
#include "worker/model/job_spec.h"

namespace ebb {

// Opens training and validation data and the weights of init_from as the job's
// worker will, and compares the weights with the model's (configuration, names
// and shapes; no tensor is read).
// Errors: INVALID_ARGUMENT (or the only problem's own code) with a violation
// for every field at fault.
absl::Status CheckJobFiles(const JobSpec& spec);

}  // namespace ebb
