// What happened in one step on one rank. Plain data; proto/convert makes the
// message.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/program/memory_class.h"

namespace ebb {

struct PhaseSeconds {
  double forward = 0;
  double recompute = 0;
  double backward = 0;
  double optimizer = 0;
  double data_wait = 0;
  double offload_wait = 0;  // for copies that were not done in time
  double checkpoint = 0;
};

// Between the device and places off it, values and state.
struct CopiedBytes {
  int64_t to_host = 0;
  int64_t from_host = 0;
  int64_t to_disk = 0;
  int64_t from_disk = 0;

  bool operator==(const CopiedBytes&) const = default;
  CopiedBytes operator-(const CopiedBytes& before) const {
    return {to_host - before.to_host, from_host - before.from_host,
            to_disk - before.to_disk, from_disk - before.from_disk};
  }
};

// What encoding a value lost in a step, over its layers and microbatches.
struct EncodeError {
  std::string value;  // template: "L*.mlp_act.y"
  // Root of the mean squared error over that of the values' squares.
  double relative_error = 0;
  double largest_error = 0;  // of any element
};

struct StepReport {
  int64_t step = 0;
  double loss = 0;  // mean over the tokens of the global batch, nats
  double gradient_norm = 0;
  double learning_rate = 0;
  int64_t tokens = 0;
  double duration_seconds = 0;
  double model_flops = 0;  // summed over instructions really executed
  double recompute_flops = 0;
  bool skipped = false;        // gradient norm not finite: nothing updated
  MemoryBytes memory;          // counted at the moment of the peak
  int64_t saved_bytes = 0;     // largest sum of kSaved
  int64_t host_bytes = 0;      // largest sum in the host arena, counted
  int64_t disk_bytes = 0;      // and in the disk arena
  CopiedBytes copied;          // by copies made in the step
  int64_t resident_bytes = 0;  // anonymous + shared of the process
  PhaseSeconds phases;
  std::vector<EncodeError> encode_errors;
};

struct EvalResult {
  int64_t step = 0;
  double loss = 0;
  int64_t tokens = 0;
  double duration_seconds = 0;
};

}  // namespace ebb
