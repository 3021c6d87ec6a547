// `ebb-worker --sample`: tokens from a checkpoint, printed as they are made.
//
// Standard input is the prompt: bytes of text, or with `ids` decimal numbers
// between blanks. Standard output: a line with the checkpoint's step, then what
// follows the prompt: bytes of text, or a line an id.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/runtime/token_choice.h"

namespace ebb {

struct SamplingOptions {
  // Directory that holds step-N directories.
  std::string checkpoints;
  int64_t step = 0;  // 0: the newest complete one
  int64_t num_tokens = 100;
  SamplingSettings settings;
  bool ids = false;
};

// Makes the tokens; `write` takes every piece of output and says false when
// nobody reads it any more. Text ends where the model ends the file.
// Errors: FAILED_PRECONDITION without a complete checkpoint, or for text of a
// model that was not trained on text; INVALID_ARGUMENT for a prompt that is
// none; CANCELLED after false; those of Sampler.
absl::Status Sample(const SamplingOptions& options, const std::string& prompt,
                    const std::function<bool(absl::string_view)>& write);

}  // namespace ebb
