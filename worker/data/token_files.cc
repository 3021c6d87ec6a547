// Opening, checking and reading token files.
#include "worker/data/token_files.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "worker/data/glob.h"
#include "worker/data/megatron_index.h"

namespace ebb {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and read in place");

constexpr int64_t kHeaderWords = 256;
constexpr int64_t kHeaderBytes = kHeaderWords * 4;
constexpr int32_t kGpt2Magic = 20240520;
constexpr int32_t kLlama3Magic = 20240801;
constexpr const char* kMagics = "20240520 (GPT-2) or 20240801 (Llama 3)";

// Tokens of each file whose ids are checked at open: a wrong tokenizer shows at
// once (published GPT-2 files start with id 50256), and a submit stays short.
constexpr int64_t kTokensChecked = 1 << 20;

const char* FormatName(DataFormat format) {
  constexpr const char* kNames[] = {"auto", "text", "llmc", "megatron"};
  return kNames[static_cast<int>(format)];
}

const char* TokenTypeName(TokenType type) {
  constexpr const char* kNames[] = {"uint8", "uint16", "uint32", "int32"};
  return kNames[static_cast<int>(type)];
}

// What a magic stands for; version 0 for a magic that is not known.
struct Layout {
  int32_t version = 0;
  TokenType type = TokenType::kUint8;

  bool known() const { return version != 0; }
};

Layout LayoutOf(int32_t magic) {
  if (magic == kGpt2Magic) return {1, TokenType::kUint16};
  if (magic == kLlama3Magic) return {7, TokenType::kUint32};
  return {};
}

int32_t SwapBytes(int32_t word) {
  return static_cast<int32_t>(__builtin_bswap32(static_cast<uint32_t>(word)));
}

// Magics of this family are dates. No text begins with such a word: one of its
// bytes is a control character.
bool IsDate(int32_t word) {
  const int32_t day = word % 100;
  const int32_t month = word / 100 % 100;
  const int32_t year = word / 10000;
  return year >= 2020 && year <= 2099 && month >= 1 && month <= 12 &&
         day >= 1 && day <= 31;
}

int64_t TokenAt(const uint8_t* data, TokenType type, int64_t index) {
  switch (type) {
    case TokenType::kUint8:
      return data[index];
    case TokenType::kUint16: {
      uint16_t id;
      std::memcpy(&id, data + 2 * index, sizeof(id));
      return id;
    }
    case TokenType::kUint32: {
      uint32_t id;
      std::memcpy(&id, data + 4 * index, sizeof(id));
      return id;
    }
    case TokenType::kInt32: {
      int32_t id;
      std::memcpy(&id, data + 4 * index, sizeof(id));
      return id;
    }
  }
  return -1;
}

int TokenBytes(TokenType type) {
  constexpr int kBytes[] = {1, 2, 4, 4};
  return kBytes[static_cast<int>(type)];
}

std::string OutsideVocab(int64_t id, int64_t vocab, int64_t offset) {
  return absl::StrCat("token id outside the vocabulary: expected below ", vocab,
                      ", found ", id, " at byte ", offset);
}

absl::Status UnknownMagic(int32_t magic, bool automatic) {
  std::string message = absl::StrCat("not an llm.c token file: expected magic ",
                                     kMagics, ", found ", magic);
  if (LayoutOf(SwapBytes(magic)).known()) {
    absl::StrAppend(&message, " (", SwapBytes(magic),
                    " with its bytes swapped)");
  }
  if (automatic) {
    absl::StrAppend(&message,
                    "; a Megatron file needs its .idx beside it; to train on "
                    "its bytes as they are, set data.format to text");
  }
  return absl::InvalidArgumentError(message);
}

// The first word of a file, 0 for a shorter one; nothing is said of what cannot
// be read.
int32_t FirstWord(const std::string& path) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  int32_t word = 0;
  if (!file.ok() || file->bytes() < 4 || !file->ReadAt(0, &word, 4).ok()) {
    return 0;
  }
  return word;
}

bool StartsAsMegatronIndex(const std::string& path) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  char start[kMegatronMagicBytes];
  return file.ok() && file->bytes() >= kMegatronMagicBytes &&
         file->ReadAt(0, start, kMegatronMagicBytes).ok() &&
         IsMegatronIndex({start, kMegatronMagicBytes});
}

bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

// Whether the path is one of a Megatron pair. An index beside a .bin speaks for
// it, whatever is wrong with the index, unless the .bin is an llm.c file.
bool IsMegatron(const std::string& path, DataFormat format) {
  if (format != DataFormat::kAuto) return format == DataFormat::kMegatron;
  if (absl::EndsWith(path, ".idx")) return StartsAsMegatronIndex(path);
  return absl::EndsWith(path, ".bin") &&
         Exists(absl::StrCat(MegatronPrefix(path), ".idx")) &&
         !LayoutOf(FirstWord(path)).known();
}

}  // namespace

int64_t TokenFiles::Shard::offset(int64_t token) const {
  return header_bytes + token * TokenBytes(type);
}

int64_t TokenFiles::Shard::token(int64_t index) const {
  if (type == TokenType::kUint8 && index == bytes) return kEndOfText;
  return TokenAt(data + header_bytes, type, index);
}

TokenFiles::~TokenFiles() {
  for (const Shard& shard : shards_) {
    munmap(const_cast<uint8_t*>(shard.data), shard.bytes);
  }
}

absl::StatusOr<std::unique_ptr<TokenFiles>> TokenFiles::Open(
    absl::string_view field, absl::string_view pattern, DataFormat format,
    int64_t vocab, int64_t seq_len) {
  EBB_CHECK(vocab > 0 && seq_len > 0);
  absl::StatusOr<std::vector<std::string>> paths = ExpandGlob(pattern);
  if (paths.ok() && paths->empty() &&
      (format == DataFormat::kMegatron || format == DataFormat::kAuto)) {
    paths = ExpandGlob(absl::StrCat(pattern, ".idx"));
  }
  if (!paths.ok()) return Annotate(paths.status(), field);
  if (paths->empty()) {
    return absl::NotFoundError(absl::StrCat(
        "no such file, nor one that matches: ", pattern, ": ", field));
  }
  std::unique_ptr<TokenFiles> files(new TokenFiles);
  files->vocab_ = vocab;
  files->seq_len_ = seq_len;
  std::set<std::string> pairs;  // a pattern may name both files of one
  for (const std::string& path : *paths) {
    absl::Status status;
    if (!IsMegatron(path, format)) {
      status = files->AddShard(path, format);
    } else if (pairs.insert(MegatronPrefix(path)).second) {
      status = files->AddMegatron(MegatronPrefix(path));
    }
    EBB_RETURN_IF_ERROR(Annotate(Annotate(status, path), field));
  }
  return files;
}

absl::Status TokenFiles::AddShard(const std::string& path, DataFormat format) {
  EBB_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  if (file.bytes() == 0) {
    return absl::InvalidArgumentError(
        "empty file: expected tokens, found 0 bytes");
  }
  int32_t header[kHeaderWords] = {};
  EBB_RETURN_IF_ERROR(
      file.ReadAt(0, header, std::min(file.bytes(), kHeaderBytes)));
  const bool has_word = file.bytes() >= 4;
  const Layout layout = has_word ? LayoutOf(header[0]) : Layout();
  if (format == DataFormat::kAuto) {
    const bool suspect =
        absl::EndsWith(path, ".bin") ||
        (has_word && (IsDate(header[0]) || IsDate(SwapBytes(header[0]))));
    if (!layout.known() && suspect) return UnknownMagic(header[0], true);
    format = layout.known() ? DataFormat::kLlmc : DataFormat::kText;
  } else if (format == DataFormat::kLlmc && !layout.known()) {
    return UnknownMagic(header[0], false);
  }

  Shard shard;
  shard.path = path;
  if (format == DataFormat::kText) {
    shard.tokens = file.bytes() + 1;
    if (vocab_ < kTextVocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("text needs a vocabulary of ", kTextVocab,
                       ": model.vocab is ", vocab_));
    }
    return Append(std::move(shard), format, file);
  }
  shard.header_bytes = kHeaderBytes;
  shard.type = layout.type;
  if (file.bytes() < kHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("header cut short: expected ", kHeaderBytes,
                     " bytes, found ", file.bytes()));
  }
  if (header[1] != layout.version) {
    return absl::InvalidArgumentError(
        absl::StrCat("wrong version for magic ", header[0], ": expected ",
                     layout.version, ", found ", header[1]));
  }
  if (header[2] < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wrong token count in the header: expected at least 1, found ",
        header[2]));
  }
  shard.tokens = header[2];
  const int64_t expected = shard.offset(shard.tokens);
  if (file.bytes() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("wrong size: ", shard.tokens, " tokens of ",
                     TokenBytes(shard.type), " bytes after the header make ",
                     expected, " bytes, found ", file.bytes()));
  }
  return Append(std::move(shard), format, file);
}

absl::Status TokenFiles::AddMegatron(const std::string& prefix) {
  const std::string index_path = absl::StrCat(prefix, ".idx");
  const absl::StatusOr<MegatronIndex> index = ReadMegatronIndex(index_path);
  if (!index.ok()) return Annotate(index.status(), index_path);
  Shard shard;
  shard.path = absl::StrCat(prefix, ".bin");
  shard.type = index->token_bytes == 2 ? TokenType::kUint16 : TokenType::kInt32;
  shard.tokens = index->tokens;
  const absl::StatusOr<RegularFile> file = RegularFile::Open(shard.path);
  if (!file.ok()) return Annotate(file.status(), shard.path);
  if (file->bytes() != index->bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("wrong size: expected ", index->bytes(), " bytes for the ",
                     index->tokens, " tokens of its index, found ",
                     file->bytes(), ": ", shard.path));
  }
  return Append(std::move(shard), DataFormat::kMegatron, *file);
}

absl::Status TokenFiles::Append(Shard shard, DataFormat format,
                                const RegularFile& file) {
  if (!shards_.empty() &&
      (format_ != format || shards_[0].type != shard.type)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "files of different formats: expected ", FormatName(format_), " (",
        TokenTypeName(shards_[0].type), ") as in ", shards_[0].path, ", found ",
        FormatName(format), " (", TokenTypeName(shard.type), ")"));
  }
  if (format != DataFormat::kText) {
    std::vector<uint8_t> buffer(1 << 16);
    const int token_bytes = TokenBytes(shard.type);
    const int64_t per_buffer = std::ssize(buffer) / token_bytes;
    const int64_t end = std::min(shard.tokens, kTokensChecked);
    for (int64_t first = 0; first < end; first += per_buffer) {
      const int64_t count = std::min(per_buffer, end - first);
      EBB_RETURN_IF_ERROR(
          file.ReadAt(shard.offset(first), buffer.data(), count * token_bytes));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t id = TokenAt(buffer.data(), shard.type, i);
        if (id < 0 || id >= vocab_) {
          return absl::InvalidArgumentError(
              OutsideVocab(id, vocab_, shard.offset(first + i)));
        }
      }
    }
  }

  shard.bytes = file.bytes();
  shard.device = file.device();
  shard.inode = file.inode();
  void* data =
      mmap(nullptr, shard.bytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot map ", shard.bytes, " bytes: ", std::strerror(errno)));
  }
  shard.data = static_cast<const uint8_t*>(data);
  const int64_t sequences = (shard.tokens - 1) / seq_len_;
  shard.first_sequence = counts_.sequences;
  format_ = format;
  counts_.files += 1;
  counts_.bytes += shard.bytes;
  counts_.tokens += shard.tokens;
  counts_.sequences += sequences;
  counts_.unused_tokens += shard.tokens - 1 - sequences * seq_len_;
  counts_.unused_files += sequences == 0 ? 1 : 0;
  shards_.push_back(std::move(shard));
  return absl::OkStatus();
}

absl::Status TokenFiles::CheckSize(const Shard& shard) const {
  // By name, since a job may have more files than descriptors. A file that was
  // removed or replaced stays mapped as it was.
  struct stat info;
  if (stat(shard.path.c_str(), &info) != 0 || info.st_dev != shard.device ||
      info.st_ino != shard.inode || info.st_size == shard.bytes) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      "file changed while the job reads it: expected ", shard.bytes,
      " bytes, found ", info.st_size, ": ", shard.path));
}

absl::Status TokenFiles::Read(int64_t sequence, std::span<int32_t> tokens,
                              std::span<int32_t> targets) const {
  EBB_CHECK(sequence >= 0 && sequence < counts_.sequences);
  EBB_CHECK(std::ssize(tokens) == seq_len_ && std::ssize(targets) == seq_len_);
  // The last shard that starts at or before the sequence: those without any
  // share their first sequence with the one behind them.
  auto shard = std::upper_bound(
      shards_.begin(), shards_.end(), sequence,
      [](int64_t value, const Shard& s) { return value < s.first_sequence; });
  --shard;
  EBB_RETURN_IF_ERROR(CheckSize(*shard));
  const int64_t first = (sequence - shard->first_sequence) * seq_len_;
  int64_t id = 0;
  for (int64_t i = 0; i <= seq_len_; ++i) {
    id = shard->token(first + i);
    if (id < 0 || id >= vocab_) {
      return absl::DataLossError(
          absl::StrCat(OutsideVocab(id, vocab_, shard->offset(first + i)), ": ",
                       shard->path));
    }
    if (i < seq_len_) tokens[i] = static_cast<int32_t>(id);
    if (i > 0) targets[i - 1] = static_cast<int32_t>(id);
  }
  return absl::OkStatus();
}

}  // namespace ebb
