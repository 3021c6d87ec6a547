// `ebb-worker --profile`: what a job's ops take on this machine, measured by
// training a few steps of it, on random tokens and with few layers (layers are
// alike). For the coordinator, which starts it and reads what it prints.
//
// Standard input is the spec as JSON, effective. Standard output is one line: a
// JSON object of op (worker/program/cost_profile.h, OpKey) -> seconds, with
// what copies of offloaded values take beside those steps (CopyKey,
// CopyLossKey).
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "worker/model/job_spec.h"

namespace ebb {

// Asks `cancelled` between steps. Copies to disk are measured in the directory
// of the spec or, if it names none, in `offload_directory`.
// Errors: those of lowering; RESOURCE_EXHAUSTED if not even one layer fits
// available memory; CANCELLED.
absl::StatusOr<std::map<std::string, double>> ProfileJob(
    const JobSpec& spec, const std::string& offload_directory,
    const std::function<bool()>& cancelled);

// The same from and to text.
absl::StatusOr<std::string> ProfileJobText(
    const std::string& spec_json, const std::string& offload_directory,
    const std::function<bool()>& cancelled);

}  // namespace ebb
