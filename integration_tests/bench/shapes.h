// The models that `./run bench` trains, and the jobs around them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/job_spec.h"

namespace ebb::bench {

// "gpt2-124m" (Radford et al. 2019, table 2, at 512 tokens) and "llama" (12
// layers of 768, grouped-query attention, 32000 tokens, untied); "small" is for
// trying the bench out.
std::vector<std::string> ShapeNames();

// A job of the shape: micro batch 2, global batch 8. `name` is one of the
// above.
JobSpec MakeJob(const std::string& name, DType precision, int threads);

// The job of a spec file, on so many threads; what the spec does not say of
// budgets has no limit. Its data need not be there.
// Errors: NOT_FOUND; those of reading specs.
absl::StatusOr<JobSpec> ReadJob(const std::string& path, int threads);

}  // namespace ebb::bench
