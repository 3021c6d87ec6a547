// Token files: what `data.train` or `data.validation` names, memory-mapped
// read-only and cut into sequences.
//
// Formats
//   text   every byte is a token, as it is (CR, NUL, byte order marks and
//          invalid UTF-8 included); id 256 follows the last byte of each file.
//          A file of b bytes holds b + 1 tokens; ids are below 257.
//   llm.c  256 little-endian int32: magic, version, number of tokens, zeros;
//          then the tokens. Magic 20240520: version 1, uint16 (GPT-2). Magic
//          20240801: version 7, uint32 (Llama 3). The magic alone decides the
//          width, and the size of the file must be exactly what the count says.
//   megatron  a pair PREFIX.bin, PREFIX.idx (megatron_index.h): uint16 or int32
//          ids as the index says. Named by either file or by PREFIX; counted
//          as one file.
//   auto   llm.c if a file starts with one of the magics, megatron if it is an
//          index or has one beside it, else text. A file named *.bin, or one
//          whose first word looks like a magic of llm.c's family (a date, or
//          one with its bytes swapped), is not taken for text in silence: it
//          is refused.
//
// Sequences
//   A sequence is seq_len inputs and seq_len targets; targets are the inputs
//   shifted by one, so it reads seq_len + 1 tokens and shares the last one with
//   the next sequence. Sequences do not cross the end of a file: a file of t
//   tokens holds (t - 1) div seq_len of them, its last token can be a target,
//   and the rest, (t - 1) mod seq_len targets, is never used. Sequences are
//   numbered through the files in the order of their names.
//
// The files must stay as they are while a job trains: one that was cut short
// is noticed by its size at the next read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/regular_file.h"
#include "worker/model/job_spec.h"

namespace ebb {

// Token after the end of a text file, and the smallest vocabulary that has it.
constexpr int32_t kEndOfText = 256;
constexpr int64_t kTextVocab = 257;

enum class TokenType : uint8_t { kUint8, kUint16, kUint32, kInt32 };

// What is in one file or in all of them.
struct TokenCounts {
  int64_t files = 0;
  int64_t bytes = 0;
  int64_t tokens = 0;
  int64_t sequences = 0;
  // Tokens that no sequence of an epoch predicts, the first one of each file
  // left out of the count.
  int64_t unused_tokens = 0;
  // Files too short for one sequence.
  int64_t unused_files = 0;
};

// Owns the mappings. Immutable after Open: any thread may read.
class TokenFiles {
 public:
  // Opens all files that `pattern` names. `field` is the spec's name for it
  // ("data.train"), for messages. Looks at the headers, the sizes and the first
  // million tokens of each file; ids further on are checked when they are read.
  // Errors: INVALID_ARGUMENT (no such file, not a regular file, not readable,
  // wrong header, index or size, empty, formats mixed, an id outside the
  // vocabulary), always with file, expected and found; RESOURCE_EXHAUSTED if
  // the files cannot be mapped.
  static absl::StatusOr<std::unique_ptr<TokenFiles>> Open(
      absl::string_view field, absl::string_view pattern, DataFormat format,
      int64_t vocab, int64_t seq_len);

  TokenFiles(const TokenFiles&) = delete;
  TokenFiles& operator=(const TokenFiles&) = delete;
  ~TokenFiles();

  // Never kAuto.
  DataFormat format() const { return format_; }
  int64_t seq_len() const { return seq_len_; }
  int64_t num_sequences() const { return counts_.sequences; }
  const TokenCounts& counts() const { return counts_; }

  // Reads one sequence, 0 <= sequence < num_sequences(); both spans hold
  // seq_len ids.
  // Errors: DATA_LOSS for an id outside the vocabulary (file, byte offset, id)
  // and for a file that changed its size.
  absl::Status Read(int64_t sequence, std::span<int32_t> tokens,
                    std::span<int32_t> targets) const;

 private:
  struct Shard {
    std::string path;
    const uint8_t* data = nullptr;  // whole file; null if it has no bytes
    int64_t bytes = 0;
    int64_t header_bytes = 0;
    TokenType type = TokenType::kUint8;
    int64_t tokens = 0;
    int64_t first_sequence = 0;
    uint64_t device = 0;  // identity of the mapped file
    uint64_t inode = 0;

    int64_t offset(int64_t token) const;
    int64_t token(int64_t index) const;
  };

  TokenFiles() = default;
  // Text or llm.c.
  absl::Status AddShard(const std::string& path, DataFormat format);
  absl::Status AddMegatron(const std::string& prefix);
  // Checks the ids and maps the file.
  absl::Status Append(Shard shard, DataFormat format, const RegularFile& file);
  absl::Status CheckSize(const Shard& shard) const;

  std::vector<Shard> shards_;  // by name, all of one format and type
  DataFormat format_ = DataFormat::kText;
  int64_t vocab_ = 0;
  int64_t seq_len_ = 0;
  TokenCounts counts_;
};

}  // namespace ebb
