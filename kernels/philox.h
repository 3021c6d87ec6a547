// Philox4x32-10, the counter-based generator behind dropout and weight
// initialisation. Source: Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC'11, section 3.3. A draw is a pure function of its key and
// counter: nothing is stored, and recompute sees the mask of the forward pass.
//
//   key     = Mix(seed) xor Mix'(value_key)
//   counter = (element / 4 [low], element / 4 [high], sequence, step)
// where `sequence` is the index of the sequence within the global batch and
// `element` counts within that sequence, so a mask does not depend on the size
// of a microbatch or on the layout.
#pragma once

#include <array>
#include <cstdint>

namespace ebb::philox {

using Block = std::array<uint32_t, 4>;

constexpr uint32_t kMultiplier0 = 0xD2511F53u;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kWeyl0 = 0x9E3779B9u;
constexpr uint32_t kWeyl1 = 0xBB67AE85u;
constexpr int kRounds = 10;

// Returns the four 32-bit words of one counter value.
constexpr Block Generate(Block counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

// Finaliser of SplitMix64 (Steele et al., OOPSLA'14): spreads every bit of x.
constexpr uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Key of one value's draws under one seed.
constexpr uint64_t Key(uint64_t seed, uint64_t value_key) {
  return Mix(seed ^ Mix(value_key));
}

// Returns the block that holds elements 4 * block .. 4 * block + 3 of a
// sequence.
constexpr Block Draw(uint64_t key, uint64_t block, uint32_t sequence,
                     uint32_t step) {
  return Generate({static_cast<uint32_t>(block),
                   static_cast<uint32_t>(block >> 32), sequence, step},
                  static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

// A word below the threshold means that the element is dropped. Rounded to the
// nearest of 2^32 steps.
constexpr uint32_t DropThreshold(float dropout) {
  return static_cast<uint32_t>(static_cast<double>(dropout) * 4294967296.0 +
                               0.5);
}

// Factor of the elements that stay, so that the expectation is unchanged.
constexpr float KeepScale(float dropout) { return 1.0f / (1.0f - dropout); }

}  // namespace ebb::philox
