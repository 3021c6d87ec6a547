// The index of a Megatron data set (MMapIndexedDataset): PREFIX.idx says what
// lies in PREFIX.bin, which holds token ids and nothing else.
//
// Little-endian, one behind the other:
//   9 bytes   "MMIDIDX\0\0"
//   uint64    version, 1
//   uint8     dtype code: 4 int32, 8 uint16 (others hold no token ids)
//   uint64    s, number of sequences
//   uint64    d, entries of the document table: number of documents + 1
//   int32[s]  tokens of each sequence
//   int64[s]  byte at which each begins in PREFIX.bin
//   int64[d]  first sequence of each document; the last entry is s
// Sequences are pieces of text as the preparing program made them, not what a
// model trains on: Ebb lets them and the documents run on as one text. It takes
// only files whose sequences lie one behind the other from byte 0, which is how
// they are written.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ebb {

struct MegatronIndex {
  int token_bytes = 0;  // 2 (uint16) or 4 (int32)
  int64_t tokens = 0;   // in PREFIX.bin
  int64_t sequences = 0;
  int64_t documents = 0;

  int64_t bytes() const { return tokens * token_bytes; }  // of PREFIX.bin
};

// Whether a file of at least these first bytes is such an index.
bool IsMegatronIndex(absl::string_view first_bytes);
constexpr int64_t kMegatronMagicBytes = 9;

// "PREFIX" of a path to PREFIX.bin or PREFIX.idx; the path itself of others.
std::string MegatronPrefix(absl::string_view path);

// Reads an index from beginning to end, a piece at a time, and believes
// nothing of it.
// Errors: INVALID_ARGUMENT, without the path, that names the field at fault,
// with expected and found.
absl::StatusOr<MegatronIndex> ReadMegatronIndex(const std::string& path);

}  // namespace ebb
