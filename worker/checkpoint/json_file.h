// Small JSON documents that came with a checkpoint from elsewhere.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace ebb {

// An index of 60,000 tensors is a third of it.
constexpr int64_t kLargestJsonFile = int64_t{16} << 20;

// Takes text of one JSON value that nests at most 32 deep and names no member
// twice. Errors: DATA_LOSS with the byte or the member.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text);

// Reads a file of at most kLargestJsonFile bytes that holds a JSON object.
// Errors: DATA_LOSS, those of InputFile::Open and Read; with the path.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path);

}  // namespace ebb
