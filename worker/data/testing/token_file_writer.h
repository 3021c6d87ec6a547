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
