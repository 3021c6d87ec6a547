// Where the executor gets token ids from. Implemented by worker/data; tests
// have their own.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace ebb {

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Fills tokens and targets (each sequences * seq_len ids) with sequences
  // first_sequence .. of the job's training order; position 0 is the first
  // sequence of step 1. Missing ones (evaluation only) get token 0, target -1.
  // Errors: DATA_LOSS for an id outside the vocabulary, with file and offset.
  virtual absl::Status Fill(int64_t first_sequence, std::span<int32_t> tokens,
                            std::span<int32_t> targets) = 0;
};

}  // namespace ebb
