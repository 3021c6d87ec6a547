// Opening, checking and reading token files.
#include "worker/data/token_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "worker/data/glob.h"

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

// What a magic stands for; zeros for a magic that is not known.
struct Layout {
  int32_t version = 0;
  int token_bytes = 0;

  bool known() const { return token_bytes != 0; }
};

Layout LayoutOf(int32_t magic) {
  if (magic == kGpt2Magic) return Layout{1, 2};
  if (magic == kLlama3Magic) return Layout{7, 4};
  return Layout();
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

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// Reads `bytes` bytes at an offset. A mapped file that shrinks ends the process
// at the next access, a read merely fails: the coordinator opens files too.
absl::Status ReadAt(int descriptor, int64_t offset, void* out, int64_t bytes) {
  char* to = static_cast<char*>(out);
  for (int64_t done = 0; done < bytes;) {
    const ssize_t count =
        pread(descriptor, to + done, bytes - done, offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot read: ", std::strerror(errno)));
    }
    if (count == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("cut short while it was read, at byte ", offset + done));
    }
    done += count;
  }
  return absl::OkStatus();
}

int64_t TokenAt(const uint8_t* data, int token_bytes, int64_t index) {
  if (token_bytes == 1) return data[index];
  if (token_bytes == 2) {
    uint16_t id;
    std::memcpy(&id, data + 2 * index, sizeof(id));
    return id;
  }
  uint32_t id;
  std::memcpy(&id, data + 4 * index, sizeof(id));
  return id;
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
                    "; to train on its bytes as they are, set data.format to "
                    "text");
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace

int64_t TokenFiles::Shard::token(int64_t index) const {
  if (token_bytes == 1 && index == bytes) return kEndOfText;
  return TokenAt(data + header_bytes, token_bytes, index);
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
  if (format == DataFormat::kMegatron) {
    return absl::UnimplementedError(
        absl::StrCat("data.format megatron is not built: ", field));
  }
  absl::StatusOr<std::vector<std::string>> paths = ExpandGlob(pattern);
  if (!paths.ok()) return Annotate(paths.status(), field);
  if (paths->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no such file, nor one that matches: ", pattern, ": ", field));
  }
  std::unique_ptr<TokenFiles> files(new TokenFiles);
  files->vocab_ = vocab;
  files->seq_len_ = seq_len;
  for (const std::string& path : *paths) {
    EBB_RETURN_IF_ERROR(
        Annotate(Annotate(files->AddShard(path, format), path), field));
  }
  return files;
}

absl::Status TokenFiles::AddShard(const std::string& path, DataFormat format) {
  // Opening a FIFO waits for its writer and opening a device may act on it, so
  // look first; O_NONBLOCK for what takes its place in between.
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot open: ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a regular file, found ", KindOf(info.st_mode)));
  }
  const Descriptor file(
      open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (file.get() < 0 || fstat(file.get(), &info) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot open: ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a regular file, found ", KindOf(info.st_mode)));
  }
  Shard shard;
  shard.path = path;
  shard.bytes = info.st_size;
  shard.device = info.st_dev;
  shard.inode = info.st_ino;
  if (shard.bytes == 0) {
    return absl::InvalidArgumentError(
        "empty file: expected tokens, found 0 bytes");
  }

  int32_t header[kHeaderWords] = {};
  EBB_RETURN_IF_ERROR(
      ReadAt(file.get(), 0, header, std::min(shard.bytes, kHeaderBytes)));
  const bool has_word = shard.bytes >= 4;
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

  if (format == DataFormat::kText) {
    shard.token_bytes = 1;
    shard.tokens = shard.bytes + 1;
    if (vocab_ < kTextVocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("text needs a vocabulary of ", kTextVocab,
                       ": model.vocab is ", vocab_));
    }
  } else {
    shard.header_bytes = kHeaderBytes;
    shard.token_bytes = layout.token_bytes;
    if (shard.bytes < kHeaderBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("header cut short: expected ", kHeaderBytes,
                       " bytes, found ", shard.bytes));
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
    if (shard.bytes != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat("wrong size: ", shard.tokens, " tokens of ",
                       shard.token_bytes, " bytes after the header make ",
                       expected, " bytes, found ", shard.bytes));
    }
  }
  if (!shards_.empty() && shards_[0].token_bytes != shard.token_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("files of different formats: expected tokens of ",
                     shards_[0].token_bytes, " bytes as in ", shards_[0].path,
                     ", found ", shard.token_bytes));
  }
  if (format == DataFormat::kLlmc) {
    std::vector<uint8_t> buffer(1 << 16);
    const int64_t per_buffer =
        static_cast<int64_t>(buffer.size()) / shard.token_bytes;
    const int64_t end = std::min(shard.tokens, kTokensChecked);
    for (int64_t first = 0; first < end; first += per_buffer) {
      const int64_t count = std::min(per_buffer, end - first);
      EBB_RETURN_IF_ERROR(ReadAt(file.get(), shard.offset(first), buffer.data(),
                                 count * shard.token_bytes));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t id = TokenAt(buffer.data(), shard.token_bytes, i);
        if (id >= vocab_) {
          return absl::InvalidArgumentError(
              OutsideVocab(id, vocab_, shard.offset(first + i)));
        }
      }
    }
  }

  void* data = mmap(nullptr, shard.bytes, PROT_READ, MAP_SHARED, file.get(), 0);
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
    if (id >= vocab_) {
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
