// From logits to a token. Pure: the same logits, settings and position give the
// same token.
#pragma once

#include <cstdint>
#include <span>

namespace ebb {

struct SamplingSettings {
  // Logits are divided by it. 0: the likeliest token, the first of equals.
  double temperature = 1;
  // Only so many of the likeliest tokens are considered; 0: all.
  int64_t top_k = 0;
  uint64_t seed = 0;
};

// Draws a token from softmax(logits / temperature) over the top_k likeliest
// (of equal ones those with smaller ids). `position` counts the tokens made so
// far: each has a draw of its own from the counter-based generator. Tokens
// whose logits are not finite are never drawn; -1 if none is finite.
// REQUIRES: temperature is finite and not negative.
int32_t ChooseToken(std::span<const float> logits,
                    const SamplingSettings& settings, uint64_t position);

}  // namespace ebb
