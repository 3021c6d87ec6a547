// Checking an index field by field.
#include "worker/data/megatron_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "worker/data/regular_file.h"

namespace ebb {
namespace {

static_assert(std::endian::native == std::endian::little,
              "indexes are little-endian and read as they are");

constexpr absl::string_view kMagic("MMIDIDX\0\0", kMegatronMagicBytes);
constexpr uint64_t kVersion = 1;
constexpr int64_t kHeaderBytes = 34;
// Bytes of so many are still a number of 64 bits.
constexpr int64_t kMostTokens = int64_t{1} << 60;
// Entries of a table that are held at a time.
constexpr int64_t kPiece = 1 << 13;

template <typename T>
T Load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Bytes of a token by dtype code; 0 for what holds no token ids.
int TokenBytes(uint8_t code) {
  if (code == 8) return 2;  // uint16
  if (code == 4) return 4;  // int32
  return 0;
}

absl::Status Wrong(absl::string_view field, absl::string_view expected,
                   absl::string_view found) {
  return absl::InvalidArgumentError(absl::StrCat(
      "Megatron index: ", field, ": expected ", expected, ", found ", found));
}

// One table, read a piece at a time.
template <typename T>
class Table {
 public:
  Table(const RegularFile& file, int64_t offset, int64_t size)
      : file_(file), offset_(offset), left_(size) {}

  // The next entry; called `size` times.
  absl::StatusOr<T> Next() {
    if (position_ == piece_.size()) {
      piece_.resize(static_cast<size_t>(std::min(kPiece, left_)));
      const int64_t bytes = std::ssize(piece_) * int64_t{sizeof(T)};
      EBB_RETURN_IF_ERROR(file_.ReadAt(offset_, piece_.data(), bytes));
      offset_ += bytes;
      left_ -= std::ssize(piece_);
      position_ = 0;
    }
    return piece_[position_++];
  }

 private:
  const RegularFile& file_;
  int64_t offset_;
  int64_t left_;
  std::vector<T> piece_;
  size_t position_ = 0;
};

absl::Status CheckDocuments(Table<int64_t> table, int64_t entries,
                            int64_t sequences) {
  int64_t last = 0;
  for (int64_t i = 0; i < entries; ++i) {
    EBB_ASSIGN_OR_RETURN(const int64_t first, table.Next());
    const std::string field = absl::StrCat("document table, entry ", i);
    if (i == 0 && first != 0) return Wrong(field, "0", absl::StrCat(first));
    if (first < last || first > sequences) {
      return Wrong(field, absl::StrCat(last, " to ", sequences),
                   absl::StrCat(first));
    }
    last = first;
  }
  if (last != sequences) {
    return Wrong("document table, last entry",
                 absl::StrCat("the number of sequences, ", sequences),
                 absl::StrCat(last));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsMegatronIndex(absl::string_view first_bytes) {
  return absl::StartsWith(first_bytes, kMagic);
}

std::string MegatronPrefix(absl::string_view path) {
  if (absl::EndsWith(path, ".bin") || absl::EndsWith(path, ".idx")) {
    path.remove_suffix(4);
  }
  return std::string(path);
}

absl::StatusOr<MegatronIndex> ReadMegatronIndex(const std::string& path) {
  EBB_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  char header[kHeaderBytes] = {};
  const int64_t read = std::min(file.bytes(), kHeaderBytes);
  EBB_RETURN_IF_ERROR(file.ReadAt(0, header, read));
  if (read >= kMegatronMagicBytes &&
      !IsMegatronIndex({header, sizeof(header)})) {
    return Wrong("magic", "MMIDIDX and two zero bytes", "other bytes");
  }
  if (read < kHeaderBytes) {
    return Wrong("header", absl::StrCat(kHeaderBytes, " bytes"),
                 absl::StrCat(read));
  }
  const auto version = Load<uint64_t>(header + 9);
  const auto code = Load<uint8_t>(header + 17);
  const auto sequences = Load<uint64_t>(header + 18);
  const auto entries = Load<uint64_t>(header + 26);
  if (version != kVersion) {
    return Wrong("version", absl::StrCat(kVersion), absl::StrCat(version));
  }
  MegatronIndex index;
  index.token_bytes = TokenBytes(code);
  if (index.token_bytes == 0) {
    return Wrong("dtype code", "4 (int32) or 8 (uint16)",
                 absl::StrCat(static_cast<int>(code)));
  }
  // Bounds first, so that the sum below fits: each table alone fits the file.
  const auto bytes = static_cast<uint64_t>(file.bytes());
  const uint64_t most_sequences = (bytes - kHeaderBytes) / 12;
  if (sequences < 1 || sequences > most_sequences) {
    return Wrong("sequence count",
                 absl::StrCat("1 to ", most_sequences, " in ", bytes, " bytes"),
                 absl::StrCat(sequences));
  }
  if (entries < 2 || entries > bytes / 8) {
    return Wrong("document count",
                 absl::StrCat("2 to ", bytes / 8, " in ", bytes, " bytes"),
                 absl::StrCat(entries));
  }
  const uint64_t end = kHeaderBytes + 12 * sequences + 8 * entries;
  if (bytes != end) {
    return Wrong("size",
                 absl::StrCat(end, " bytes for ", sequences, " sequences and ",
                              entries, " entries of the document table"),
                 absl::StrCat(bytes));
  }
  index.sequences = static_cast<int64_t>(sequences);
  index.documents = static_cast<int64_t>(entries) - 1;
  const int64_t pointers = kHeaderBytes + 4 * index.sequences;
  const int64_t documents = pointers + 8 * index.sequences;
  Table<int32_t> lengths(file, kHeaderBytes, index.sequences);
  Table<int64_t> begins(file, pointers, index.sequences);
  for (int64_t i = 0; i < index.sequences; ++i) {
    EBB_ASSIGN_OR_RETURN(const int32_t length, lengths.Next());
    EBB_ASSIGN_OR_RETURN(const int64_t begin, begins.Next());
    if (length < 0) {
      return Wrong(absl::StrCat("length of sequence ", i), "at least 0",
                   absl::StrCat(length));
    }
    if (begin != index.bytes()) {
      return Wrong(absl::StrCat("pointer of sequence ", i),
                   absl::StrCat("byte ", index.bytes(),
                                ", behind the sequence before it"),
                   absl::StrCat(begin));
    }
    index.tokens += length;
    if (index.tokens > kMostTokens) {
      return Wrong(absl::StrCat("length of sequence ", i),
                   absl::StrCat("at most ", kMostTokens, " tokens in all"),
                   absl::StrCat(index.tokens));
    }
  }
  if (index.tokens < 1) {
    return Wrong("lengths", "at least 1 token in all", "0");
  }
  EBB_RETURN_IF_ERROR(
      CheckDocuments(Table<int64_t>(file, documents, index.documents + 1),
                     index.documents + 1, index.sequences));
  return index;
}

}  // namespace ebb
