// Filling parameters from Philox draws.
#include "worker/optimizer/initialize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "kernels/philox.h"
#include "kernels/status.h"

namespace ebb {
namespace {

// Words to (0, 1): never 0, whose logarithm is infinite.
double Uniform(uint32_t word) { return (word + 0.5) / 4294967296.0; }

// Four normals from one block.
std::array<double, 4> Normals(const philox::Block& block) {
  std::array<double, 4> normals;
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2 * std::log(Uniform(block[2 * pair])));
    const double angle = 2 * std::numbers::pi * Uniform(block[2 * pair + 1]);
    normals[2 * pair] = radius * std::cos(angle);
    normals[2 * pair + 1] = radius * std::sin(angle);
  }
  return normals;
}

}  // namespace

void InitializeParameter(uint64_t seed, uint64_t value_key, Init init,
                         double standard_deviation, int64_t first_element,
                         std::span<float> out) {
  EBB_CHECK(first_element >= 0);
  if (init != Init::kNormal) {
    std::fill(out.begin(), out.end(), init == Init::kOnes ? 1.0f : 0.0f);
    return;
  }
  const uint64_t key = philox::Key(seed, value_key);
  const uint64_t first = static_cast<uint64_t>(first_element);
  const uint64_t end = first + out.size();
  for (uint64_t block = first / 4; block * 4 < end; ++block) {
    const std::array<double, 4> normals =
        Normals(philox::Draw(key, block, /*sequence=*/0, /*step=*/0));
    for (uint64_t word = 0; word < 4; ++word) {
      const uint64_t element = block * 4 + word;
      if (element < first || element >= end) continue;
      out[element - first] =
          static_cast<float>(standard_deviation * normals[word]);
    }
  }
}

}  // namespace ebb
