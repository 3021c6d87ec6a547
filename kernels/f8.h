// The element type fp8 e4m3 on the host: 1 sign, 4 exponent (bias 7) and 3
// mantissa bits, without infinities; all bits of exponent and mantissa set is
// NaN, the largest number is 448, the smallest 2^-9. No dependency beyond the
// standard library.
// Source: OCP 8-bit Floating Point Specification (OFP8), E4M3.
#pragma once

#include <bit>
#include <cstdint>

namespace ebb {

struct F8E4M3 {
  uint8_t bits = 0;
};

inline constexpr float kLargestF8E4M3 = 448;
inline constexpr uint8_t kF8E4M3Nan = 0x7F;  // beside the sign

inline float ToFloat(F8E4M3 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80) << 24;
  const uint32_t magnitude = value.bits & 0x7F;
  uint32_t bits;
  if (magnitude == kF8E4M3Nan) {
    bits = 0x7FC00000;
  } else if (magnitude < 8) {  // subnormal: multiples of 2^-9
    bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude) / 512);
  } else {
    bits = (magnitude << 20) + (uint32_t{127 - 7} << 23);
  }
  return std::bit_cast<float>(bits | sign);
}

// Rounds to nearest, ties to even. What has no number to round to becomes NaN:
// NaN, infinities, and what rounds to more than 448.
inline F8E4M3 RoundToF8E4M3(float value) {
  const uint32_t all = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(all >> 24 & 0x80);
  const uint32_t bits = all & 0x7FFFFFFF;
  uint32_t magnitude;
  if (bits > std::bit_cast<uint32_t>(464.0f)) {
    // 464 lies between 448, whose code is even, and the 480 that NaN stands in
    // for.
    magnitude = kF8E4M3Nan;
  } else if (bits < std::bit_cast<uint32_t>(1.0f / 64)) {
    // Adding 2^14 leaves multiples of 2^-9 in the mantissa; 8 of them are the
    // smallest normal number.
    const float shifted = std::bit_cast<float>(bits) + 16384.0f;
    magnitude =
        std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(16384.0f);
  } else {
    const uint32_t rounded = bits + 0x7FFFF + (bits >> 20 & 1);
    magnitude = (rounded >> 20) - ((127 - 7) << 3);
  }
  return {static_cast<uint8_t>(magnitude | sign)};
}

}  // namespace ebb
