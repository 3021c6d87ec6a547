// Writes token files for tests.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/status.h"

namespace ebb::testing {

// A directory that goes with its owner.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "ebb-test-XXXXXX").string();
    EBB_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

inline std::string WriteFile(const std::string& path,
                             const std::string& contents) {
  std::ofstream file(path, std::ios::binary);
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  EBB_CHECK(file.good());
  return path;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(T));
}

// An llm.c header. The count of a well-formed file is that of its tokens.
inline std::string LlmcHeader(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return Bytes(header);
}

inline std::string WriteGpt2Tokens(const std::string& path,
                                   const std::vector<uint16_t>& tokens) {
  return WriteFile(path,
                   LlmcHeader(20240520, 1, tokens.size()) + Bytes(tokens));
}

// A Megatron index, its fields as they are: what a test breaks, it sets.
struct MegatronIndexFields {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t dtype = 8;  // uint16
  std::vector<int32_t> lengths;
  std::vector<int64_t> pointers;
  std::vector<int64_t> documents;
  // The counts in the header, where they are not those of the tables.
  int64_t sequence_count = -1;
  int64_t document_count = -1;

  std::string bytes() const {
    const std::vector<int64_t> counts = {
        sequence_count >= 0 ? sequence_count : std::ssize(lengths),
        document_count >= 0 ? document_count : std::ssize(documents)};
    return magic + Bytes(std::vector<uint64_t>{version}) +
           Bytes(std::vector<uint8_t>{dtype}) + Bytes(counts) + Bytes(lengths) +
           Bytes(pointers) + Bytes(documents);
  }
};

// The index of sequences of these lengths, each a document.
inline MegatronIndexFields MegatronIndexOf(const std::vector<int32_t>& lengths,
                                           int token_bytes) {
  MegatronIndexFields fields;
  fields.dtype = token_bytes == 2 ? 8 : 4;
  fields.lengths = lengths;
  int64_t end = 0;
  fields.documents = {0};
  for (const int32_t length : lengths) {
    fields.pointers.push_back(end);
    end += int64_t{length} * token_bytes;
    fields.documents.push_back(std::ssize(fields.pointers));
  }
  return fields;
}

// t[i] = (7919 i + 104729 (i div 7)) mod 257: looks random, repeats nowhere
// near.
inline std::vector<uint16_t> ScatteredTokens(int64_t count) {
  std::vector<uint16_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<uint16_t>((7919 * i + 104729 * (i / 7)) % 257);
  }
  return tokens;
}

}  // namespace ebb::testing
