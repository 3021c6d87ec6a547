// The spec that a job really has: presets and every default filled in. This is
// what the coordinator stores, sends to workers and shows.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/spec.pb.h"

namespace ebb {

// What the spec leaves to the machine, found at submit.
struct MachineDefaults {
  int threads = 1;
  int64_t budget_bytes = 0;
  int64_t host_budget_bytes = 0;
  std::string device = "cpu";  // for device: auto
};

// Checks the spec as ValidateSpec does and fills in every default. The
// effective spec of an effective spec is itself.
// Errors: as ValidateSpec.
absl::StatusOr<v1::JobSpec> EffectiveSpec(const v1::JobSpec& spec,
                                          const MachineDefaults& machine);

// Fills in all defaults that need no machine (resources.threads, device and the
// budgets stay as they are); checks nothing. An unknown preset counts as none.
v1::JobSpec WithDefaults(const v1::JobSpec& spec);

}  // namespace ebb
