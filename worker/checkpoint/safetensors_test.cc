// cases.md F4: whatever a safetensors file claims, it is checked first.
#include "worker/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "kernels/philox.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kOwnLength = ~uint64_t{1};  // Bytes() puts the true one

// A file of this header and so many zero bytes.
std::string FileOf(const std::string& header, size_t data_bytes,
                   uint64_t length = kOwnLength) {
  if (length == kOwnLength) length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + std::string(data_bytes, '\0');
}

// The header of one tensor x.
std::string OneTensor(const std::string& shape, const std::string& offsets,
                      const std::string& dtype = "\"F32\"") {
  return absl::StrCat("{\"x\":{\"dtype\":", dtype, ",\"shape\":", shape,
                      ",\"data_offsets\":", offsets, "}}");
}

// A sanitizer keeps freed memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kKeepsFreedMemory = true;
#else
constexpr bool kKeepsFreedMemory = false;
#endif

// Largest resident memory of this process so far.
int64_t PeakBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

class Safetensors : public ::testing::Test {
 protected:
  Safetensors() {
    // In memory where there is such a directory: thousands of files are
    // written.
    const fs::path memory = "/dev/shm";
    const fs::path base =
        fs::is_directory(memory) ? memory : fs::temp_directory_path();
    std::string pattern = (base / "ebb-safetensors.XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  ~Safetensors() override { fs::remove_all(directory_); }

  std::string Path(const std::string& name) const {
    return absl::StrCat(directory_, "/", name);
  }
  std::string Put(const std::string& bytes) const {
    std::ofstream(Path("x"), std::ios::binary | std::ios::trunc) << bytes;
    return Path("x");
  }
  void ExpectRefused(const std::string& bytes, const std::string& part) const {
    SCOPED_TRACE(part);
    const absl::Status status = SafetensorsReader::Open(Put(bytes)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    EXPECT_THAT(std::string(status.message()), HasSubstr(Path("x")));
  }

  std::string directory_;
};

TEST_F(Safetensors, ReadsWhatItWrote) {
  const std::vector<float> weight = {1, -2.5f, 3e-40f, INFINITY, 5, 6};
  const std::vector<float> bias = {7};
  SafetensorsWriter writer(PosixFileSystem(), Path("w"));
  ASSERT_TRUE(
      writer.Begin({{"h.weight", {2, 3}}, {"bias", {1}}}, {{"format", "pt"}})
          .ok());
  ASSERT_TRUE(writer.Write(absl::MakeSpan(weight).first(4)).ok());
  ASSERT_TRUE(writer.Write(absl::MakeSpan(weight).subspan(4)).ok());
  ASSERT_TRUE(writer.Write(bias).ok());
  ASSERT_TRUE(writer.Finish().ok());

  const auto reader = SafetensorsReader::Open(Path("w"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->metadata().at("format"), "pt");
  ASSERT_EQ(reader->entries().size(), 2u);
  EXPECT_EQ(reader->entries()[0].name, "bias");
  const SafetensorsEntry* entry = reader->Find("h.weight");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(reader->Find("h"), nullptr);
  EXPECT_THAT(entry->shape, ElementsAre(2, 3));
  EXPECT_EQ(SafetensorsTypeText(*entry), "F32 [2, 3]");
  std::vector<float> values(6);
  ASSERT_TRUE(reader->Read(*entry, 0, absl::MakeSpan(values)).ok());
  EXPECT_EQ(values, weight);
  std::vector<float> part(2);
  ASSERT_TRUE(reader->Read(*entry, 1, absl::MakeSpan(part)).ok());
  EXPECT_THAT(part, ElementsAre(-2.5f, 3e-40f));
  // The tensors begin at a multiple of eight bytes.
  std::ifstream file(Path("w"), std::ios::binary);
  uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), 8);
  EXPECT_EQ(length % 8, 0u);
}

TEST_F(Safetensors, WritesNoTwinsAndNothingOverAFile) {
  SafetensorsWriter twins(PosixFileSystem(), Path("w"));
  EXPECT_EQ(twins.Begin({{"a", {1}}, {"a", {1}}}, {}).code(),
            absl::StatusCode::kInvalidArgument);
  SafetensorsWriter no_text(PosixFileSystem(), Path("w"));
  EXPECT_EQ(no_text.Begin({{"\xff", {1}}}, {}).code(),
            absl::StatusCode::kInvalidArgument);
  Put("something");
  SafetensorsWriter over(PosixFileSystem(), Path("x"));
  EXPECT_EQ(over.Begin({{"a", {1}}}, {}).code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(Safetensors, ConvertsHalfPrecisionExactly) {
  // Every bit pattern of both, NaNs by being NaN.
  std::string header =
      "{\"b\":{\"dtype\":\"BF16\",\"shape\":[65536],\"data_offsets\":[0,131072]"
      "},\"h\":{\"dtype\":\"F16\",\"shape\":[256,256],\"data_offsets\":[131072,"
      "262144]}}  ";
  std::string bytes = FileOf(header, 0);
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (int bits = 0; bits < 65536; ++bits) {
      bytes.push_back(static_cast<char>(bits & 255));
      bytes.push_back(static_cast<char>(bits >> 8));
    }
  }
  const auto reader = SafetensorsReader::Open(Put(bytes));
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> bf16(65536);
  std::vector<float> f16(65536);
  ASSERT_TRUE(reader->Read(*reader->Find("b"), 0, absl::MakeSpan(bf16)).ok());
  ASSERT_TRUE(reader->Read(*reader->Find("h"), 0, absl::MakeSpan(f16)).ok());
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    ASSERT_EQ(std::bit_cast<uint32_t>(bf16[bits]), bits << 16);
    const int exponent = bits >> 10 & 31;
    const int fraction = bits & 0x3ff;
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(f16[bits]), fraction != 0);
      ASSERT_EQ(std::isinf(f16[bits]), fraction == 0);
    } else {
      const double value = exponent == 0
                               ? std::ldexp(fraction, -24)
                               : std::ldexp(1024 + fraction, exponent - 25);
      ASSERT_EQ(f16[bits], sign * value) << bits;
    }
    ASSERT_EQ(std::signbit(f16[bits]), bits >> 15 != 0) << bits;
  }
}

TEST_F(Safetensors, ReadsOtherDtypesNotAtAll) {
  const auto reader = SafetensorsReader::Open(
      Put(FileOf(OneTensor("[2]", "[0,2]", "\"U8\""), 2)));
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> values(2);
  const absl::Status status =
      reader->Read(*reader->Find("x"), 0, absl::MakeSpan(values));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("dtype U8"));
}

TEST_F(Safetensors, TakesScalarsEmptyTensorsAndEmptyFiles) {
  const auto reader = SafetensorsReader::Open(Put(FileOf(
      "{\"__metadata__\":{},\"e\":{\"dtype\":\"F32\",\"shape\":[3,0],"
      "\"data_offsets\":[0,0]},\"s\":{\"shape\":[],\"data_offsets\":[0,4],"
      "\"dtype\":\"F32\"}}   ",
      4)));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->Find("e")->num_elements(), 0);
  EXPECT_EQ(reader->Find("s")->num_elements(), 1);
  EXPECT_TRUE(SafetensorsReader::Open(Put(FileOf("{}", 0))).ok());
}

TEST_F(Safetensors, RefusesShortFiles) {
  ExpectRefused("", "want at least 8 bytes, found 0");
  ExpectRefused(std::string(7, '\0'), "want at least 8 bytes, found 7");
  ExpectRefused(std::string(8, '\0'), "the header is not a JSON object");
}

TEST_F(Safetensors, RefusesHeaderLengthsThatLie) {
  const std::string header = OneTensor("[2]", "[0,8]");
  ExpectRefused(FileOf(header, 8, 0), "not a JSON object");
  ExpectRefused(FileOf(header, 8, ~uint64_t{0}),
                "the header's length is 18446744073709551615");
  const uint64_t size = FileOf(header, 8).size();
  ExpectRefused(FileOf(header, 8, size + 1),
                absl::StrCat("the header's length is ", size + 1));
  ExpectRefused(FileOf(header, 8, 200 << 20),
                "the header's length is 209715200");
  ExpectRefused(FileOf(header, 8, header.size() - 1), "is not JSON");
  ExpectRefused(FileOf(header, 8, header.size() + 8), "is not JSON");
  // A header of 200 MB that is there: sparse, so that the test is fast.
  Put(FileOf(header, 8, 200 << 20));
  fs::resize_file(Path("x"), (200 << 20) + 100);
  const absl::Status status = SafetensorsReader::Open(Path("x")).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 8388608"));
}

TEST_F(Safetensors, RefusesShapesThatOverflow) {
  ExpectRefused(FileOf(OneTensor("[4294967296,4294967296]", "[0,0]"), 0),
                "more elements than any file: tensor x");
  ExpectRefused(FileOf(OneTensor("[4294967296,4294967296,0]", "[0,0]"), 0),
                "more elements than any file: tensor x");
  ExpectRefused(FileOf(OneTensor("[9223372036854775807]", "[0,0]"), 0),
                "more elements than any file: tensor x");
}

TEST_F(Safetensors, RefusesOffsetsThatLie) {
  ExpectRefused(FileOf(OneTensor("[2]", "[16,8]"), 16),
                "[16, 8] end before they begin: tensor x");
  ExpectRefused(FileOf(OneTensor("[2]", "[-1,8]"), 16),
                "no integer from 0 to 2^63 - 1: tensor x");
  ExpectRefused(FileOf(OneTensor("[2]", "[0,9223372036854775808]"), 16),
                "no integer from 0 to 2^63 - 1: tensor x");
  ExpectRefused(FileOf(OneTensor("[2]", "[0,1e30]"), 16), "no integer");
  ExpectRefused(FileOf(OneTensor("[2]", "[0,9223372036854775807]"), 16),
                "end behind the file, which has 16 bytes of tensors: tensor x");
  ExpectRefused(FileOf(OneTensor("[2]", "[0,8]"), 7), "end behind the file");
  ExpectRefused(FileOf(OneTensor("[2]", "[0]"), 8), "wants two numbers");
  ExpectRefused(FileOf(OneTensor("[2]", "[0,8,8]"), 8), "wants two numbers");
}

TEST_F(Safetensors, RefusesSpansThatAreNotTheShapes) {
  ExpectRefused(FileOf(OneTensor("[2]", "[0,12]"), 12),
                "hold 12 bytes, want 8 for F32 [2]: tensor x");
  ExpectRefused(FileOf(OneTensor("[3]", "[0,8]"), 8), "want 12 for F32 [3]");
  ExpectRefused(FileOf(OneTensor("[2]", "[0,8]", "\"F16\""), 8),
                "want 4 for F16 [2]");
}

TEST_F(Safetensors, RefusesHolesOverlapsAndRests) {
  const std::string a =
      "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},";
  ExpectRefused(FileOf(a + OneTensor("[4]", "[5,9]", "\"U8\"").substr(1), 9),
                "want to begin at 4, where the tensor before ends: tensor x");
  ExpectRefused(FileOf(a + OneTensor("[4]", "[3,7]", "\"U8\"").substr(1), 7),
                "want to begin at 4, where the tensor before ends: tensor x");
  ExpectRefused(FileOf(OneTensor("[2]", "[0,8]"), 9),
                "the tensors have 8 bytes, the file has 9");
}

TEST_F(Safetensors, RefusesHeadersThatAreNoTables) {
  for (const char* header :
       {"[]", "null", "\"x\"", "x", " {}", "7", "\xff\xfe{}"}) {
    ExpectRefused(FileOf(header, 0), "is not a JSON object");
  }
  for (const char* header : {"{", "{}x", "{\"x\"", "{\"\xff\":{}}", "{\"x\":{",
                             "{x:1}", "{\"x\":{\"dtype\":\"F32\",,"}) {
    ExpectRefused(FileOf(header, 0), "is not JSON");
  }
  ExpectRefused(FileOf("{\"x\":3}", 0), "has 'x', which is no object");
  ExpectRefused(FileOf("{\"x\":[]}", 0), "has 'x', which is no object");
  ExpectRefused(FileOf("{\"x\":{}}", 0),
                "wants members dtype, shape and data_offsets: tensor x");
  ExpectRefused(FileOf("{\"x\":{\"colour\":1}}", 0), "unknown member 'colour'");
  ExpectRefused(FileOf("{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0),
                "two members dtype: tensor x");
  ExpectRefused(FileOf(OneTensor("[2]", "[0,8]", "\"F31\""), 8),
                "unknown dtype 'F31': tensor x");
  ExpectRefused(FileOf(OneTensor("[2]", "[0,8]", "32"), 8),
                "member dtype is of a wrong kind: tensor x");
  ExpectRefused(FileOf(OneTensor("2", "[0,8]"), 8),
                "member shape is of a wrong kind: tensor x");
  ExpectRefused(FileOf(OneTensor("[[2]]", "[0,8]"), 8),
                "member shape is of a wrong kind: tensor x");
  ExpectRefused(FileOf(OneTensor("[2.5]", "[0,8]"), 8), "shape has a number");
  const std::string one = OneTensor("[0]", "[0,0]");
  ExpectRefused(
      FileOf(absl::StrCat(one.substr(0, one.size() - 1), ",", one.substr(1)),
             0),
      "two tensors named x");
  ExpectRefused(FileOf("{\"__metadata__\":{\"a\":1}}", 0), "__metadata__");
  ExpectRefused(FileOf("{\"__metadata__\":{\"a\":{}}}", 0), "__metadata__");
}

// Deep nesting would be deep recursion.
TEST_F(Safetensors, RefusesDeepNestingAtItsSecondLevel) {
  std::string deep = "{\"x\":{\"shape\":";
  deep += std::string(1 << 20, '[');
  ExpectRefused(FileOf(deep, 0), "member shape is of a wrong kind: tensor x");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"x\":";
  ExpectRefused(FileOf(objects, 0), "unknown member 'x': tensor x");
}

TEST_F(Safetensors, NamesWhatIsThereInstead) {
  EXPECT_EQ(SafetensorsReader::Open(Path("none")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsReader::Open(directory_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsReader::Open(Path("fifo")).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// The largest headers that are looked into, of the kinds that make most of
// their bytes: names, numbers, members, tensors.
TEST_F(Safetensors, HoldsLittleOfLargeHeaders) {
  const size_t most = static_cast<size_t>(kLargestSafetensorsHeader) - 100;
  const auto repeat = [&](std::string text, const std::string& part) {
    while (text.size() + part.size() < most) text += part;
    return text;
  };
  std::string tensors = "{";
  for (int i = 0; tensors.size() + 80 < most; ++i) {
    absl::StrAppend(&tensors, i == 0 ? "" : ",", "\"", i,
                    "\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[", i,
                    ",", i + 1, "]}");
  }
  std::string members = "{\"__metadata__\":{\"a\":\"\"";
  for (int i = 0; members.size() + 80 < most; ++i) {
    absl::StrAppend(&members, ",\"", i, "\":\"\"");
  }
  const std::vector<std::string> headers = {
      repeat("{\"", "name"),
      repeat("{\"x\":{\"shape\":[1", ",1"),
      repeat("{\"x\":{\"shape\":", "["),
      repeat("{\"__metadata__\":{\"a\":\"", "text"),
      members,
      tensors,
      tensors + "}",  // right but for the bytes that it names
  };
  for (const std::string& header : headers) {
    SCOPED_TRACE(header.substr(0, 40));
    Put(FileOf(header, 0));
    const int64_t before = PeakBytes();
    EXPECT_EQ(SafetensorsReader::Open(Path("x")).status().code(),
              absl::StatusCode::kDataLoss);
    if (!kKeepsFreedMemory) {
      EXPECT_LT(PeakBytes() - before, 50'000'000);
    }
  }
}

// A good file with any bytes changed, cut or repeated either opens, and then
// every tensor can be read, or is refused.
TEST_F(Safetensors, SurvivesMutations) {
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"},\"wte.weight\":{\"dtype\":\"F32\","
      "\"shape\":[3,4],\"data_offsets\":[0,48]},\"h.0.b\":{\"dtype\":\"BF16\","
      "\"shape\":[5],\"data_offsets\":[48,58]},\"s\":{\"dtype\":\"F16\","
      "\"shape\":[],\"data_offsets\":[58,60]}}";
  const std::string good = FileOf(header, 60);
  constexpr char kInteresting[] = "0123456789-{}[]\",:.eE \\u\0\xff\x80";
  uint64_t random = 20260401;
  const auto next = [&](uint64_t below) {
    random = philox::Mix(random + 0x9e3779b97f4a7c15);
    return random % below;
  };
  int opened = 0;
  constexpr int kMutants = 20000;
  for (int n = 0; n < kMutants; ++n) {
    std::string bytes = good;
    for (uint64_t changes = 1 + next(3); changes > 0; --changes) {
      // Mostly the header; sometimes its length or the tensors.
      const size_t at =
          next(4) == 0 ? next(bytes.size())
                       : 8 + next(std::min(bytes.size() - 8, header.size()));
      switch (next(4)) {
        case 0:
          bytes[at] = static_cast<char>(next(256));
          break;
        case 1:
          bytes[at] = kInteresting[next(sizeof(kInteresting) - 1)];
          break;
        case 2:
          bytes.erase(at, 1 + next(8));
          break;
        default:
          bytes.insert(at, bytes.substr(next(bytes.size()), next(12)));
      }
      if (bytes.size() < 16) bytes = good;
      // Half of the mutants have a length that fits.
      if (next(2) == 0) {
        const uint64_t length = bytes.size() - 68;
        if (bytes.size() > 68) std::memcpy(bytes.data(), &length, 8);
      }
    }
    const auto reader = SafetensorsReader::Open(Put(bytes));
    if (!reader.ok()) {
      ASSERT_EQ(reader.status().code(), absl::StatusCode::kDataLoss);
      continue;
    }
    ++opened;
    for (const SafetensorsEntry& entry : reader->entries()) {
      std::vector<float> values(static_cast<size_t>(entry.num_elements()));
      const absl::Status status =
          reader->Read(entry, 0, absl::MakeSpan(values));
      ASSERT_TRUE(status.ok() || absl::IsUnimplemented(status)) << status;
    }
  }
  // Names and tensors' bytes may change: neither all nor none are refused.
  EXPECT_GT(opened, kMutants / 100);
  EXPECT_LT(opened, kMutants / 2);
}

}  // namespace
}  // namespace ebb
