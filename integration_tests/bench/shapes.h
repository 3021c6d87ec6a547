// The models that `./run bench` trains, and the jobs around them.
#pragma once

#include <string>
#include <vector>

#include "worker/model/job_spec.h"

namespace ebb::bench {

// "gpt2-124m" (Radford et al. 2019, table 2, at 512 tokens) and "llama" (12
// layers of 768, grouped-query attention, 32000 tokens, untied); "small" is for
// trying the bench out.
std::vector<std::string> ShapeNames();

// A job of the shape: micro batch 2, global batch 8. `name` is one of the
// above.
JobSpec MakeJob(const std::string& name, DType precision, int threads);

}  // namespace ebb::bench
