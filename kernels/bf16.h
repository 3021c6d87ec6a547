// The element type bf16 on the host: the upper half of an fp32 (1 sign, 8
// exponent and 7 mantissa bits). No dependency beyond the standard library.
//
// Everything is computed in fp32: a bf16 is only how a value is stored.
// Widening is exact, rounding is to nearest, ties to even, and a NaN stays one;
// results beyond the largest bf16 become infinite.
#pragma once

#include <bit>
#include <cstdint>

namespace ebb {

struct Bf16 {
  uint16_t bits = 0;
};

inline float ToFloat(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// So that code for both element types widens with one word.
inline float ToFloat(float value) { return value; }

inline Bf16 RoundToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // A payload in the lower half alone would be cut off: set the quiet bit.
  if (value != value) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

}  // namespace ebb
