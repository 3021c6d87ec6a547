// The keyed bijection behind the training order.
#include "worker/data/order.h"

#include <bit>

#include "kernels/philox.h"
#include "kernels/status.h"

namespace ebb {
namespace {

// Key of the order's draws, apart from the keys of values: "dataorde" in ASCII.
constexpr uint64_t kOrderKey = 0x646174616F726465ull;

// Four rounds make a strong pseudo-random permutation of a large domain (Luby &
// Rackoff); halves of a few bits need more to mix.
constexpr uint32_t kRounds = 10;

// Below this the network would mix too little; walking out of 64 numbers is
// still cheap.
constexpr int kMinHalfBits = 3;

}  // namespace

SequenceOrder::SequenceOrder(uint64_t seed, int64_t num_sequences, bool shuffle)
    : key_(philox::Key(seed, kOrderKey)),
      num_sequences_(num_sequences),
      shuffle_(shuffle),
      half_bits_(kMinHalfBits) {
  EBB_CHECK(num_sequences >= 1);
  const int bits = std::bit_width(static_cast<uint64_t>(num_sequences - 1));
  if (bits > 2 * kMinHalfBits) half_bits_ = (bits + 1) / 2;
}

int64_t SequenceOrder::At(int64_t position) const {
  const int64_t index = position % num_sequences_;
  if (!shuffle_) return index;
  const uint64_t epoch = static_cast<uint64_t>(position / num_sequences_);
  const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << half_bits_) - 1);
  uint64_t value = static_cast<uint64_t>(index);
  do {
    uint32_t left = static_cast<uint32_t>(value >> half_bits_);
    uint32_t right = static_cast<uint32_t>(value) & mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const philox::Block block = philox::Generate(
          {right, round, static_cast<uint32_t>(epoch),
           static_cast<uint32_t>(epoch >> 32)},
          static_cast<uint32_t>(key_), static_cast<uint32_t>(key_ >> 32));
      const uint32_t next = left ^ (block[0] & mask);
      left = right;
      right = next;
    }
    value = uint64_t{left} << half_bits_ | right;
  } while (value >= static_cast<uint64_t>(num_sequences_));
  return static_cast<int64_t>(value);
}

}  // namespace ebb
