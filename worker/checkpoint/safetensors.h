// safetensors files: a table of named tensors, and their bytes.
//
//   8 bytes   n, length of the header (little-endian)
//   n bytes   JSON: {"NAME": {"dtype": "F32", "shape": [64, 256],
//             "data_offsets": [begin, end]}, ...}, offsets counted from the
//             header's end; "__metadata__" maps text to text; spaces may follow
//   the rest  the tensors' bytes, little-endian, dense, row by row
// The tensors lie one behind the other and fill the rest, so that every byte of
// a file is accounted for. Such files come from anywhere: the reader believes
// nothing, holds no more than a bounded header, and opens a bad file in
// milliseconds to say what is wrong with it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/checkpoint/file_io.h"

namespace ebb {

// A header beyond this is refused: 8 MiB describe some 60,000 tensors, and keep
// what a hostile file makes us hold far below 50 MB.
constexpr int64_t kLargestSafetensorsHeader = int64_t{8} << 20;

struct SafetensorsEntry {
  std::string name;
  const char* dtype = "";      // "F32", "BF16", "F16", "U8", ...
  std::vector<int64_t> shape;  // empty: a scalar
  int64_t begin = 0;           // bytes, from the header's end
  int64_t end = 0;

  int64_t num_elements() const;
};

// "F32 [64, 256]".
std::string SafetensorsTypeText(const SafetensorsEntry& entry);

// Const after Open; reading is safe from any thread.
class SafetensorsReader {
 public:
  // Reads and checks the header, no tensor. Errors: DATA_LOSS for a file that
  // is none or contradicts itself, with path and tensor or header; those of
  // InputFile::Open.
  static absl::StatusOr<SafetensorsReader> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  // Sorted by name.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }
  // Null if there is none.
  const SafetensorsEntry* Find(absl::string_view name) const;

  // Reads out.size() elements from the `first` on and converts them to fp32,
  // which holds every F32, BF16 and F16 exactly.
  // Errors: UNIMPLEMENTED for another dtype, those of InputFile::Read; with
  // path and tensor.
  absl::Status Read(const SafetensorsEntry& entry, int64_t first,
                    absl::Span<float> out) const;

 private:
  explicit SafetensorsReader(InputFile file) : file_(std::move(file)) {}

  InputFile file_;
  int64_t data_offset_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// One tensor of a file to be written; fp32.
struct SafetensorsOutput {
  std::string name;
  std::vector<int64_t> shape;
};

// Writes one file: header first, then the tensors' bytes in the order in which
// they were named.
class SafetensorsWriter {
 public:
  // `files` outlives it.
  SafetensorsWriter(FileSystem& files, std::string path)
      : file_(files, std::move(path)) {}

  // Creates the file (it must not exist) and writes the header. Called once.
  // Errors: INVALID_ARGUMENT for two tensors of one name or a name that is not
  // UTF-8; those of OutputFile.
  absl::Status Begin(absl::Span<const SafetensorsOutput> tensors,
                     const std::map<std::string, std::string>& metadata);
  // The next elements.
  absl::Status Write(absl::Span<const float> values);
  // Syncs and closes. REQUIRES: all elements were written.
  absl::Status Finish();

 private:
  OutputFile file_;
  int64_t elements_left_ = 0;
};

}  // namespace ebb
