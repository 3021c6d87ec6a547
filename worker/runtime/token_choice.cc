// Order by likelihood, cut, draw by the cumulative sum.
#include "worker/runtime/token_choice.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/philox.h"

namespace ebb {
namespace {

// Tells these draws from those of dropout and initialisation under one seed.
constexpr uint64_t kSampleKey = 0x73616D706C65;  // "sample"

// Uniform in [0, 1), in steps of 2^-53.
double Uniform(uint64_t seed, uint64_t position) {
  const philox::Block block =
      philox::Draw(philox::Key(seed, kSampleKey), position, 0, 0);
  const uint64_t word = (uint64_t{block[0]} << 32) | block[1];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

}  // namespace

int32_t ChooseToken(std::span<const float> logits,
                    const SamplingSettings& settings, uint64_t position) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) order.push_back(static_cast<int32_t>(i));
  }
  if (order.empty()) return -1;
  const auto likelier = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  size_t count = order.size();
  if (settings.top_k > 0) {
    count = std::min(count, static_cast<size_t>(settings.top_k));
  }
  if (settings.temperature == 0) count = 1;
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    likelier);
  std::vector<double> sums(count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    // Against the likeliest, so that nothing overflows; it gives 1 even where
    // the temperature is tiny.
    const double below = static_cast<double>(logits[order[i]]) -
                         static_cast<double>(logits[order[0]]);
    sum += below == 0 ? 1 : std::exp(below / settings.temperature);
    sums[i] = sum;
  }
  const double drawn = Uniform(settings.seed, position) * sum;
  const auto found = std::upper_bound(sums.begin(), sums.end(), drawn);
  return order[std::min<size_t>(found - sums.begin(), count - 1)];
}

}  // namespace ebb
