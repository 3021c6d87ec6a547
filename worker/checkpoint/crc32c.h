// CRC-32C (Castagnoli polynomial 0x1EDC6F41, reflected; RFC 3720 appendix B.4):
// finds every error burst of up to 32 bits.
#pragma once

#include <cstdint>

namespace ebb {

// Continues `crc` (0 at the start) over `bytes` more bytes.
uint32_t Crc32c(uint32_t crc, const void* data, int64_t bytes);

}  // namespace ebb
