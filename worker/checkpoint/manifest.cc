// Printing and checking manifests: the one file here that knows JSON.
#include "worker/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/crc32c.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "ebb-checkpoint";
constexpr int64_t kVersion = 1;
constexpr absl::string_view kCrcBegin = "\"crc32c\":\"";
constexpr absl::string_view kCrcEnd = "\"\n}\n";
constexpr size_t kCrcDigits = 8;

constexpr CheckpointRole kRoles[] = {CheckpointRole::kParameter,
                                     CheckpointRole::kFirstMoment,
                                     CheckpointRole::kSecondMoment};
constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16,
                             DType::kF64, DType::kI32};

std::string Hex(uint64_t value, size_t digits) {
  std::string text(digits, '0');
  for (size_t i = digits; i > 0; --i, value >>= 4) {
    text[i - 1] = "0123456789abcdef"[value & 15];
  }
  return text;
}

std::optional<uint64_t> ParseHex(absl::string_view text, size_t digits) {
  if (text.size() != digits) return std::nullopt;
  uint64_t value = 0;
  for (char c : text) {
    const size_t digit = absl::string_view("0123456789abcdef").find(c);
    if (digit == absl::string_view::npos) return std::nullopt;
    value = value << 4 | digit;
  }
  return value;
}

// Members of one JSON object, checked. The first mistake is kept in `status`
// and everything read after it is a zero.
class Members {
 public:
  // `where` is for messages: "tensor 3".
  Members(const Json& object, std::string where)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) Fail("expected an object");
  }

  const absl::Status& status() const { return status_; }

  void Fail(absl::string_view what) {
    if (status_.ok()) {
      status_ = absl::DataLossError(
          absl::StrCat("damaged manifest: ", what, ": ", where_));
    }
  }

  int64_t Int(const char* key, int64_t min, int64_t max) {
    const Json* member = Find(key);
    if (member == nullptr) return 0;
    const std::optional<int64_t> value = AsInt(*member);
    if (!value || *value < min || *value > max) {
      Fail(absl::StrCat(key, " is not an integer from ", min, " to ", max));
      return 0;
    }
    return *value;
  }

  uint64_t Unsigned(const char* key) {
    const Json* member = Find(key);
    if (member == nullptr) return 0;
    if (!member->is_number_unsigned()) {
      Fail(absl::StrCat(key, " is not an unsigned integer"));
      return 0;
    }
    return member->get<uint64_t>();
  }

  std::string Text(const char* key) {
    const Json* member = Find(key);
    if (member == nullptr) return "";
    if (!member->is_string()) {
      Fail(absl::StrCat(key, " is not text"));
      return "";
    }
    return member->get<std::string>();
  }

  uint64_t HexNumber(const char* key, size_t digits) {
    const std::string text = Text(key);
    if (!status_.ok()) return 0;
    const std::optional<uint64_t> value = ParseHex(text, digits);
    if (!value) {
      Fail(absl::StrCat(key, " is not ", digits, " hexadecimal digits"));
      return 0;
    }
    return *value;
  }

  // Dims of a tensor. The product is checked by the caller.
  TensorType Type() {
    TensorType type;
    const std::string dtype = Text("dtype");
    const Json* shape = Find("shape");
    if (!status_.ok()) return type;
    for (DType candidate : kDTypes) {
      if (dtype == DTypeName(candidate)) type.dtype = candidate;
    }
    if (type.dtype == DType::kNone) Fail("unknown dtype");
    if (!shape->is_array() || shape->empty() ||
        shape->size() > type.dims.size()) {
      Fail("shape is not a list of 1 to 4 dims");
      return type;
    }
    type.rank = static_cast<int8_t>(shape->size());
    for (size_t i = 0; i < shape->size(); ++i) {
      const std::optional<int64_t> dim = AsInt((*shape)[i]);
      if (!dim || *dim < 1) {
        Fail("shape has a dim that is not a positive integer");
        return type;
      }
      type.dims[i] = *dim;
    }
    return type;
  }

  // An empty list where there is none.
  const Json& List(const char* key) {
    static const Json& empty = *new Json(Json::array());
    const Json* member = Find(key);
    if (member == nullptr) return empty;
    if (!member->is_array()) {
      Fail(absl::StrCat(key, " is not a list"));
      return empty;
    }
    return *member;
  }

 private:
  static std::optional<int64_t> AsInt(const Json& value) {
    if (!value.is_number_integer()) return std::nullopt;
    if (value.is_number_unsigned() &&
        value.get<uint64_t>() >
            static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return std::nullopt;
    }
    return value.get<int64_t>();
  }

  const Json* Find(const char* key) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(key);
    if (found == object_.end()) {
      Fail(absl::StrCat("no ", key));
      return nullptr;
    }
    return &*found;
  }

  const Json& object_;
  std::string where_;
  absl::Status status_;
};

// "rank-0.bin", "rank-17.bin": never a path.
bool IsDataFileName(absl::string_view name) {
  if (!absl::StartsWith(name, "rank-") || !absl::EndsWith(name, ".bin")) {
    return false;
  }
  name.remove_prefix(5);
  name.remove_suffix(4);
  return !name.empty() && name.size() <= 6 &&
         name.find_first_not_of("0123456789") == absl::string_view::npos;
}

// Bytes of a tensor with hostile dims, or nothing if they overflow.
std::optional<int64_t> CheckedBytes(const TensorType& type) {
  int64_t bytes = DTypeBytes(type.dtype);
  for (int i = 0; i < type.rank; ++i) {
    if (__builtin_mul_overflow(bytes, type.dims[i], &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

absl::StatusOr<CheckpointEntry> ParseEntry(
    const Json& object, size_t index,
    const std::map<std::string, int64_t>& file_bytes) {
  CheckpointEntry entry;
  Members members(object, absl::StrCat("tensor ", index));
  entry.name = members.Text("name");
  const std::string role = members.Text("role");
  EBB_RETURN_IF_ERROR(members.status());
  Members named(object,
                absl::StrCat(role, " ", entry.name, " (tensor ", index, ")"));
  if (entry.name.empty()) named.Fail("empty name");
  const CheckpointRole* found = std::find_if(
      std::begin(kRoles), std::end(kRoles),
      [&](auto candidate) { return role == CheckpointRoleName(candidate); });
  if (found == std::end(kRoles)) {
    named.Fail("unknown role");
  } else {
    entry.role = *found;
  }
  entry.type = named.Type();
  entry.file = named.Text("file");
  entry.crc = static_cast<uint32_t>(named.HexNumber("crc32c", kCrcDigits));
  const int64_t max = std::numeric_limits<int64_t>::max();
  entry.offset = named.Int("offset", 0, max);
  const int64_t bytes = named.Int("bytes", 1, max);
  EBB_RETURN_IF_ERROR(named.status());
  const auto file = file_bytes.find(entry.file);
  if (file == file_bytes.end()) {
    named.Fail("its file is not in the list of files");
  } else if (CheckedBytes(entry.type) != bytes) {
    named.Fail("bytes and shape disagree");
  } else if (entry.offset % kAlignment != 0) {
    named.Fail("offset is not aligned");
  } else if (bytes > file->second || entry.offset > file->second - bytes) {
    named.Fail("it ends behind its file");
  }
  EBB_RETURN_IF_ERROR(named.status());
  return entry;
}

// Tensors of a file lie one behind the other and fill it.
absl::Status CheckCoverage(const Manifest& manifest) {
  std::vector<const CheckpointEntry*> order;
  for (const CheckpointEntry& entry : manifest.tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::tie(a->file, a->offset) < std::tie(b->file, b->offset);
  });
  std::map<std::string, int64_t> ends;
  for (const CheckpointEntry* entry : order) {
    int64_t& end = ends[entry->file];
    if (entry->offset != end) {
      return absl::DataLossError(absl::StrCat(
          "damaged manifest: expected offset ", end, ", found ", entry->offset,
          ": ", CheckpointRoleName(entry->role), " ", entry->name));
    }
    end += AlignUp(entry->type.bytes());
  }
  for (const ManifestFile& file : manifest.files) {
    if (ends[file.name] != file.bytes) {
      return absl::DataLossError(absl::StrCat(
          "damaged manifest: ", file.bytes, " bytes with tensors of ",
          ends[file.name], ": ", file.name));
    }
  }
  return absl::OkStatus();
}

// Returns the manifest without its checksum, which must be right.
absl::Status CheckCrc(absl::string_view text) {
  const size_t tail = kCrcBegin.size() + kCrcDigits + kCrcEnd.size();
  const absl::Status damaged =
      absl::DataLossError("damaged manifest: no checksum at its end");
  if (text.size() < tail) return damaged;
  const absl::string_view body = text.substr(0, text.size() - tail);
  absl::string_view rest = text.substr(body.size());
  if (!absl::StartsWith(rest, kCrcBegin) || !absl::EndsWith(rest, kCrcEnd)) {
    return damaged;
  }
  const std::optional<uint64_t> expected =
      ParseHex(rest.substr(kCrcBegin.size(), kCrcDigits), kCrcDigits);
  if (!expected) return damaged;
  const uint32_t found =
      Crc32c(0, body.data(), static_cast<int64_t>(body.size()));
  if (found != *expected) {
    return absl::DataLossError(absl::StrCat(
        "damaged manifest: expected checksum ", Hex(*expected, kCrcDigits),
        ", found ", Hex(found, kCrcDigits)));
  }
  return absl::OkStatus();
}

// Throws nlohmann's exception for text that is not UTF-8.
std::string PrintBody(const Manifest& manifest) {
  const CheckpointMeta& meta = manifest.meta;
  std::string text = "{\n";
  const auto append = [&text](const char* key, const Json& value) {
    absl::StrAppend(&text, "\"", key, "\":", value.dump(), ",\n");
  };
  append("format", kFormat);
  append("version", kVersion);
  append("step", meta.step);
  append("attempt", meta.attempt);
  append("seed", meta.seed);
  append("sequences", meta.sequences);
  append("graph_fingerprint", Hex(meta.graph_fingerprint, 16));
  append("spec", meta.spec);
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  append("files", files);
  std::vector<std::string> lines;
  for (const CheckpointEntry& entry : manifest.tensors) {
    Json shape = Json::array();
    for (int i = 0; i < entry.type.rank; ++i) {
      shape.push_back(entry.type.dims[i]);
    }
    lines.push_back(Json({{"name", entry.name},
                          {"role", CheckpointRoleName(entry.role)},
                          {"dtype", DTypeName(entry.type.dtype)},
                          {"shape", shape},
                          {"file", entry.file},
                          {"offset", entry.offset},
                          {"bytes", entry.type.bytes()},
                          {"crc32c", Hex(entry.crc, kCrcDigits)}})
                        .dump());
  }
  absl::StrAppend(&text, "\"tensors\":[\n", absl::StrJoin(lines, ",\n"),
                  "],\n");
  return text;
}

}  // namespace

const char* CheckpointRoleName(CheckpointRole role) {
  switch (role) {
    case CheckpointRole::kParameter:
      return "parameter";
    case CheckpointRole::kFirstMoment:
      return "first_moment";
    case CheckpointRole::kSecondMoment:
      return "second_moment";
  }
  return "?";
}

std::string StoredTypeText(const TensorType& type) {
  return absl::StrCat(
      DTypeName(type.dtype), " [",
      absl::StrJoin(absl::MakeSpan(type.dims.data(), type.rank), ", "), "]");
}

absl::StatusOr<std::string> PrintManifest(const Manifest& manifest) {
  std::string text;
  try {
    text = PrintBody(manifest);
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError(
        "cannot print the manifest: a name or the spec is not UTF-8");
  }
  const uint32_t crc =
      Crc32c(0, text.data(), static_cast<int64_t>(text.size()));
  absl::StrAppend(&text, kCrcBegin, Hex(crc, kCrcDigits), kCrcEnd);
  return text;
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  EBB_RETURN_IF_ERROR(CheckCrc(text));
  const Json json = Json::parse(text.begin(), text.end(), nullptr,
                                /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return absl::DataLossError("damaged manifest: not JSON");
  }
  Manifest manifest;
  CheckpointMeta& meta = manifest.meta;
  const int64_t max = std::numeric_limits<int64_t>::max();
  Members members(json, "top level");
  if (members.Text("format") != kFormat) members.Fail("unknown format");
  const int64_t version = members.Int("version", 0, max);
  EBB_RETURN_IF_ERROR(members.status());
  if (version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint of another format version: expected ",
                     kVersion, ", found ", version));
  }
  meta.step = members.Int("step", 0, max);
  meta.attempt = static_cast<int>(
      members.Int("attempt", 0, std::numeric_limits<int>::max()));
  meta.seed = members.Unsigned("seed");
  meta.sequences = members.Int("sequences", 0, max);
  meta.graph_fingerprint = members.HexNumber("graph_fingerprint", 16);
  meta.spec = members.Text("spec");
  const Json& files = members.List("files");
  const Json& tensors = members.List("tensors");
  EBB_RETURN_IF_ERROR(members.status());

  std::map<std::string, int64_t> file_bytes;
  for (size_t i = 0; i < files.size(); ++i) {
    Members file(files[i], absl::StrCat("file ", i));
    const std::string name = file.Text("name");
    const int64_t bytes = file.Int("bytes", 0, max);
    EBB_RETURN_IF_ERROR(file.status());
    if (!IsDataFileName(name)) {
      file.Fail("its name is not rank-R.bin");
    } else if (bytes % kAlignment != 0) {
      file.Fail("its size is not aligned");
    } else if (!file_bytes.insert({name, bytes}).second) {
      file.Fail("a second file of its name");
    }
    EBB_RETURN_IF_ERROR(file.status());
    manifest.files.push_back({name, bytes});
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    EBB_ASSIGN_OR_RETURN(CheckpointEntry entry,
                         ParseEntry(tensors[i], i, file_bytes));
    manifest.tensors.push_back(std::move(entry));
  }
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) {
              return std::tie(a.role, a.name) < std::tie(b.role, b.name);
            });
  for (size_t i = 1; i < manifest.tensors.size(); ++i) {
    const CheckpointEntry& entry = manifest.tensors[i];
    if (entry.role == manifest.tensors[i - 1].role &&
        entry.name == manifest.tensors[i - 1].name) {
      return absl::DataLossError(
          absl::StrCat("damaged manifest: a second tensor of its name: ",
                       CheckpointRoleName(entry.role), " ", entry.name));
    }
  }
  EBB_RETURN_IF_ERROR(CheckCoverage(manifest));
  return manifest;
}

}  // namespace ebb
