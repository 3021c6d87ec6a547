// CRC-32C by eight tables, eight bytes at a time ("slicing by 8": Kounavis &
// Berry 2008). Table k holds the checksums of one byte followed by k zeros.
#include "worker/checkpoint/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

namespace ebb {
namespace {

static_assert(std::endian::native == std::endian::little,
              "words are read in place");

constexpr uint32_t kPolynomial = 0x82F63B78u;  // 0x1EDC6F41 reflected

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    }
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = (crc >> 8) ^ tables[0][crc & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

uint32_t Crc32c(uint32_t crc, const void* data, int64_t bytes) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    word ^= crc;
    crc = 0;
    for (int k = 0; k < 8; ++k) {
      crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
    }
  }
  for (; bytes > 0; --bytes, ++at) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xFF];
  }
  return ~crc;
}

}  // namespace ebb
