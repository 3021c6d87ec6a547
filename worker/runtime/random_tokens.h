// Tokens and targets without data: drawn uniformly, the same every time. For
// measuring.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/philox.h"
#include "worker/runtime/batch_source.h"

namespace ebb {

class RandomTokens final : public BatchSource {
 public:
  explicit RandomTokens(int64_t vocab) : vocab_(vocab) {}

  absl::Status Fill(int64_t first_sequence, std::span<int32_t> tokens,
                    std::span<int32_t> targets) override {
    for (size_t n = 0; n < tokens.size(); ++n) {
      const auto draw = philox::Draw(philox::Key(1, 2), n, first_sequence, 0);
      tokens[n] = static_cast<int32_t>(draw[0] % vocab_);
      targets[n] = static_cast<int32_t>(draw[1] % vocab_);
    }
    return absl::OkStatus();
  }

 private:
  const int64_t vocab_;
};

}  // namespace ebb
