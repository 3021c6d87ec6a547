// Times training steps of a job under a policy, and says where the time goes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/job_spec.h"
#include "worker/program/cost_profile.h"

namespace ebb::bench {

// One product of the step's linears: C [m, n] of sums over k.
struct ProductShape {
  enum class Kind : uint8_t { kForward, kInputGradient, kWeightGradient };
  Kind kind = Kind::kForward;
  int64_t rows = 0, inputs = 0, outputs = 0;  // N, I, O of the linear
  auto operator<=>(const ProductShape&) const = default;

  double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(inputs) *
           static_cast<double>(outputs);
  }
};

struct CountedProduct {
  ProductShape shape;
  int64_t count = 0;  // in one step
};

// Time of all instructions of one op in one phase.
struct ProfileEntry {
  std::string op;
  std::string phase;  // forward, recompute, backward, update
  int64_t calls = 0;  // of one step
  double seconds = 0;
  double product_flops = 0;
};

struct StepMeasurement {
  std::vector<double> step_seconds;  // as measured, in order
  std::vector<double> cpu_seconds;   // of the processor, of all threads
  int64_t tokens = 0;                // of one step
  double model_flops = 0, recompute_flops = 0;
  // Of matrix products alone, attention's full square included.
  double model_product_flops = 0, recompute_product_flops = 0;
  int64_t peak_bytes = 0;
  int64_t host_bytes = 0, disk_bytes = 0;
  double loss = 0;                       // of the last step
  std::vector<CountedProduct> products;  // of linears, no recompute
  // After Profile():
  double layers_seconds = 0;  // of one step: forward and backward of layers
  std::vector<ProfileEntry> profile;  // by falling seconds
};

// Where values of the job wait on disk: memory.offload_dir, else where
// temporary files are.
std::string DiskDirectory(const JobSpec& spec);

// A job under one policy, whose steps are taken one at a time, so that jobs
// that are compared can take turns. Tokens are drawn uniformly from a fixed
// seed.
class StepBench {
 public:
  // Plans with what ops take by `profile`, takes the arenas and draws weights.
  // Errors: those of planning, of missing memory and of the executor.
  static absl::StatusOr<std::unique_ptr<StepBench>> Create(
      const JobSpec& spec, const CostProfile& profile);
  virtual ~StepBench() = default;

  virtual absl::Status WarmUp() = 0;   // one step, not counted
  virtual absl::Status Step() = 0;     // joins step_seconds
  virtual absl::Status Profile() = 0;  // one step with every launch timed
  // Seconds of a step as a plan counts them.
  virtual double Predict(const CostProfile& profile) const = 0;
  virtual const StepMeasurement& measured() const = 0;
};

}  // namespace ebb::bench
