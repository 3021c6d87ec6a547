// Reading headers event by event, so that nothing is held that is not needed,
// and tensors piece by piece.
#include "worker/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"

namespace ebb {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian and read as they are");

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr char kMetadata[] = "__metadata__";
// Deepest tensor shapes; libraries go up to 8 or so.
constexpr size_t kMostDims = 32;
constexpr size_t kMostMetadata = 1000;
// Elements converted at a time, while they are in the cache.
constexpr int64_t kPiece = 1 << 14;

struct DTypeRow {
  const char* name;
  int64_t bytes;
};
constexpr DTypeRow kDTypes[] = {
    {"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"F8_E8M0", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},     {"BF16", 2},
    {"U32", 4},     {"I32", 4}, {"F32", 4}, {"U64", 8},     {"I64", 8},
    {"F64", 8},     {"C64", 8}};

// Null for a name that is not known.
const DTypeRow* FindDType(absl::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

int64_t ElementBytes(const SafetensorsEntry& entry) {
  return FindDType(entry.dtype)->bytes;
}

// Text of a file as it may stand in a message.
std::string Shown(absl::string_view text) {
  constexpr size_t kMost = 100;
  std::string shown;
  for (const char c : text.substr(0, kMost)) {
    shown.push_back(static_cast<unsigned char>(c) < 0x20 ? '?' : c);
  }
  if (text.size() > kMost) {
    // Not in the middle of a character.
    while (!shown.empty() &&
           (static_cast<unsigned char>(shown.back()) & 0xc0) == 0x80) {
      shown.pop_back();
    }
    if (!shown.empty() && static_cast<unsigned char>(shown.back()) >= 0xc0) {
      shown.pop_back();
    }
    shown += "...";
  }
  return shown;
}

// Takes the events of a header's JSON. The first mistake ends the parse and is
// in `status`.
class HeaderEvents : public nlohmann::json_sax<Json> {
 public:
  // Errors are added to by the caller.
  absl::Status status;
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { return Scalar(); }
  bool boolean(bool) override { return Scalar(); }
  bool number_integer(number_integer_t) override {
    return Number(-1);  // unsigned ones come below
  }
  bool number_unsigned(number_unsigned_t value) override {
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    return Number(value > kMost ? -1 : static_cast<int64_t>(value));
  }
  bool number_float(number_float_t, const string_t&) override {
    return Number(-1);
  }
  bool binary(binary_t&) override { return Scalar(); }

  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) {
      metadata[member_] = std::move(text);
      return true;
    }
    if (depth_ == 2 && member_ == "dtype" && list_ == List::kNone) {
      const DTypeRow* const row = FindDType(text);
      if (row == nullptr) {
        return Fail(absl::StrCat("unknown dtype '", Shown(text), "'"));
      }
      entry_.dtype = row->name;
      return true;
    }
    return Scalar();
  }

  bool start_object(size_t) override {
    if (depth_ == 1) {
      in_metadata_ = name_ == kMetadata;
      entry_ = {};
      entry_.name = name_;
      seen_ = 0;
      offsets_.clear();
    } else if (depth_ != 0 || started_) {
      return Scalar();
    }
    started_ = true;
    ++depth_;
    return true;
  }

  bool key(string_t& text) override {
    if (depth_ == 1) {
      name_ = std::move(text);
      return true;
    }
    member_ = std::move(text);
    if (in_metadata_) {
      if (metadata.size() >= kMostMetadata) {
        return Fail(absl::StrCat("more than ", kMostMetadata, " members"));
      }
      return metadata.count(member_) == 0 || Fail("two members of one name");
    }
    const int bit = member_ == "dtype"          ? 1
                    : member_ == "shape"        ? 2
                    : member_ == "data_offsets" ? 4
                                                : 0;
    if (bit == 0) {
      return Fail(absl::StrCat("unknown member '", Shown(member_), "'"));
    }
    if (seen_ & bit) return Fail(absl::StrCat("two members ", member_));
    seen_ |= bit;
    return true;
  }

  bool end_object() override {
    if (depth_ == 1 || in_metadata_) {
      --depth_;
      in_metadata_ = false;
      return true;
    }
    if (seen_ != 7) {
      return Fail("wants members dtype, shape and data_offsets");
    }
    if (offsets_.size() != 2) return Fail("data_offsets wants two numbers");
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    entry_.shape.shrink_to_fit();
    entries.push_back(std::move(entry_));
    --depth_;
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || list_ != List::kNone) return Scalar();
    if (member_ == "shape") {
      list_ = List::kShape;
    } else if (member_ == "data_offsets") {
      list_ = List::kOffsets;
    } else {
      return Scalar();
    }
    return true;
  }
  bool end_array() override {
    list_ = List::kNone;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const Json::exception& error) override {
    // What the library says shows bytes of the file: its number is enough.
    status = absl::DataLossError(absl::StrCat("the header is not JSON (error ",
                                              error.id, " at byte ", position,
                                              " of it)"));
    return false;
  }

 private:
  enum class List { kNone, kShape, kOffsets };

  bool Fail(absl::string_view what) {
    status = absl::DataLossError(
        depth_ == 2 ? absl::StrCat(what, ": ", in_metadata_ ? "" : "tensor ",
                                   Shown(name_))
                    : absl::StrCat("the header ", what));
    return false;
  }

  // A value where none of its kind may stand.
  bool Scalar() {
    if (depth_ == 0) return Fail("is not a JSON object");
    if (depth_ == 1) {
      return Fail(absl::StrCat("has '", Shown(name_), "', which is no object"));
    }
    return Fail(absl::StrCat("member ", Shown(member_), " is of a wrong kind"));
  }

  bool Number(int64_t value) {
    if (list_ == List::kNone) return Scalar();
    const char* const what = list_ == List::kShape ? "shape" : "data_offsets";
    if (value < 0) {
      return Fail(absl::StrCat(
          what, " has a number that is no integer from 0 to 2^63 - 1"));
    }
    std::vector<int64_t>& into =
        list_ == List::kShape ? entry_.shape : offsets_;
    if (into.size() >= kMostDims) {
      return Fail(absl::StrCat(what, " has more than ", kMostDims, " numbers"));
    }
    into.push_back(value);
    return true;
  }

  int depth_ = 0;  // objects that are open
  bool started_ = false;
  bool in_metadata_ = false;
  std::string name_;    // of the tensor
  std::string member_;  // of its object
  List list_ = List::kNone;
  int seen_ = 0;
  SafetensorsEntry entry_;
  std::vector<int64_t> offsets_;
};

// Bytes of the entry's tensor by dtype and shape.
absl::StatusOr<int64_t> BytesOf(const SafetensorsEntry& entry) {
  int64_t bytes = ElementBytes(entry);
  for (const int64_t dim : entry.shape) {
    // Also where a dim of 0 follows: a shape is nonsense before it is empty.
    if (dim != 0 && __builtin_mul_overflow(bytes, dim, &bytes)) {
      return absl::DataLossError(
          absl::StrCat("shape [", absl::StrJoin(entry.shape, ", "),
                       "] has more elements than any file"));
    }
  }
  const bool empty =
      std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
  return empty ? 0 : bytes;
}

// Every tensor's span is what dtype and shape say, and all of them together are
// the file, each byte once.
absl::Status CheckSpans(std::vector<SafetensorsEntry>& entries,
                        int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  int64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::string where = absl::StrCat("tensor ", Shown(entry.name));
    const absl::StatusOr<int64_t> bytes = BytesOf(entry);
    if (!bytes.ok()) return Annotate(bytes.status(), where);
    const std::string offsets =
        absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, "]");
    if (entry.end < entry.begin) {
      return absl::DataLossError(
          absl::StrCat(offsets, " end before they begin: ", where));
    }
    if (entry.end > data_bytes) {
      return absl::DataLossError(
          absl::StrCat(offsets, " end behind the file, which has ", data_bytes,
                       " bytes of tensors: ", where));
    }
    if (entry.end - entry.begin != *bytes) {
      return absl::DataLossError(absl::StrCat(
          offsets, " hold ", entry.end - entry.begin, " bytes, want ", *bytes,
          " for ", SafetensorsTypeText(entry), ": ", where));
    }
    if (entry.begin != end) {
      return absl::DataLossError(
          absl::StrCat(offsets, " want to begin at ", end,
                       ", where the tensor before ends: ", where));
    }
    end = entry.end;
  }
  if (end != data_bytes) {
    return absl::DataLossError(absl::StrCat("the tensors have ", end,
                                            " bytes, the file has ", data_bytes,
                                            " for them"));
  }
  return absl::OkStatus();
}

float FromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Exact for every bit pattern, subnormals, infinities and NaN included.
float FromF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 31;
  const uint32_t fraction = bits & 0x3ff;
  if (exponent == 0) {
    // Subnormal or zero: fraction * 2^-24.
    const float value = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent - 15 + 127;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

}  // namespace

int64_t SafetensorsEntry::num_elements() const {
  return (end - begin) / ElementBytes(*this);
}

std::string SafetensorsTypeText(const SafetensorsEntry& entry) {
  return absl::StrCat(entry.dtype, " [", absl::StrJoin(entry.shape, ", "), "]");
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(
    const std::string& path) {
  EBB_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  const auto damaged = [&](absl::string_view what) {
    return absl::DataLossError(
        absl::StrCat(what, ": ", path, " is no safetensors file"));
  };
  if (file.bytes() < kLengthBytes) {
    return damaged(absl::StrCat("want at least ", kLengthBytes,
                                " bytes, found ", file.bytes()));
  }
  uint64_t length = 0;
  EBB_RETURN_IF_ERROR(file.Read(0, &length, kLengthBytes));
  const auto room = static_cast<uint64_t>(file.bytes() - kLengthBytes);
  if (length > room) {
    return damaged(absl::StrCat("the header's length is ", length, ", ", room,
                                " bytes follow"));
  }
  if (length > static_cast<uint64_t>(kLargestSafetensorsHeader)) {
    return damaged(absl::StrCat("the header's length is ", length, ", at most ",
                                kLargestSafetensorsHeader, " are taken"));
  }
  SafetensorsReader reader(std::move(file));
  reader.data_offset_ = kLengthBytes + static_cast<int64_t>(length);
  HeaderEvents events;
  {
    std::string header(length, '\0');
    EBB_RETURN_IF_ERROR(reader.file_.Read(kLengthBytes, header.data(),
                                          static_cast<int64_t>(length)));
    if (header.empty() || header[0] != '{') {
      return damaged("the header is not a JSON object");
    }
    // The parser takes a zero byte for the end.
    if (header.find('\0') != std::string::npos) {
      return damaged("the header is not JSON: it has a zero byte");
    }
    if (!Json::sax_parse(header, &events)) {
      return damaged(events.status.message());
    }
  }
  reader.entries_ = std::move(events.entries);
  reader.metadata_ = std::move(events.metadata);
  absl::Status status =
      CheckSpans(reader.entries_, reader.file_.bytes() - reader.data_offset_);
  std::sort(reader.entries_.begin(), reader.entries_.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twin = std::adjacent_find(
      reader.entries_.begin(), reader.entries_.end(),
      [](const auto& a, const auto& b) { return a.name == b.name; });
  if (status.ok() && twin != reader.entries_.end()) {
    status = absl::DataLossError(
        absl::StrCat("two tensors named ", Shown(twin->name)));
  }
  if (!status.ok()) return damaged(status.message());
  return reader;
}

const SafetensorsEntry* SafetensorsReader::Find(absl::string_view name) const {
  const auto found = std::lower_bound(
      entries_.begin(), entries_.end(), name,
      [](const SafetensorsEntry& entry, absl::string_view key) {
        return absl::string_view(entry.name) < key;
      });
  return found == entries_.end() || found->name != name ? nullptr : &*found;
}

absl::Status SafetensorsReader::Read(const SafetensorsEntry& entry,
                                     int64_t first,
                                     absl::Span<float> out) const {
  const int64_t count = static_cast<int64_t>(out.size());
  EBB_CHECK(first >= 0 && count <= entry.num_elements() - first);
  const int64_t element_bytes = ElementBytes(entry);
  const absl::string_view dtype = entry.dtype;
  const int64_t offset = data_offset_ + entry.begin + first * element_bytes;
  if (dtype == "F32") {
    return Annotate(file_.Read(offset, out.data(), count * element_bytes),
                    entry.name);
  }
  float (*const convert)(uint16_t) = dtype == "BF16"  ? FromBf16
                                     : dtype == "F16" ? FromF16
                                                      : nullptr;
  if (convert == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("tensor ", entry.name, " has dtype ", entry.dtype,
                     ": only F32, BF16 and F16 are read: ", path()));
  }
  std::vector<uint16_t> piece(static_cast<size_t>(std::min(kPiece, count)));
  for (int64_t done = 0; done < count;) {
    const int64_t part = std::min(kPiece, count - done);
    EBB_RETURN_IF_ERROR(Annotate(
        file_.Read(offset + 2 * done, piece.data(), 2 * part), entry.name));
    std::transform(piece.begin(), piece.begin() + part, out.data() + done,
                   convert);
    done += part;
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Begin(
    absl::Span<const SafetensorsOutput> tensors,
    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::set<std::string> names = {kMetadata};
  int64_t end = 0;
  for (const SafetensorsOutput& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two tensors named ", tensor.name));
    }
    int64_t elements = 1;
    for (const int64_t dim : tensor.shape) elements *= dim;
    const int64_t bytes = elements * int64_t{sizeof(float)};
    nlohmann::ordered_json& entry = header[tensor.name];
    entry["dtype"] = "F32";
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {end, end + bytes};
    end += bytes;
    elements_left_ += elements;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error&) {
    return absl::InvalidArgumentError(
        "a name of a tensor, or metadata, is not UTF-8");
  }
  // Spaces behind it, so that the tensors begin at a multiple of eight.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const auto length = static_cast<uint64_t>(text.size());
  EBB_RETURN_IF_ERROR(file_.Create());
  EBB_RETURN_IF_ERROR(file_.Write(&length, kLengthBytes));
  return file_.Write(text.data(), static_cast<int64_t>(text.size()));
}

absl::Status SafetensorsWriter::Write(absl::Span<const float> values) {
  elements_left_ -= static_cast<int64_t>(values.size());
  EBB_CHECK(elements_left_ >= 0);
  return file_.Write(values.data(),
                     static_cast<int64_t>(values.size() * sizeof(float)));
}

absl::Status SafetensorsWriter::Finish() {
  EBB_CHECK(elements_left_ == 0);
  return file_.SyncAndClose();
}

}  // namespace ebb
