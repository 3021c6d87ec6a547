// Manifests that lie, each with a checksum that is right: every member is
// checked by itself and against the others.
#include "worker/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/philox.h"
#include "worker/checkpoint/crc32c.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

Manifest TwoTensors() {
  Manifest manifest;
  manifest.meta.step = 12;
  manifest.meta.attempt = 3;
  manifest.meta.seed = ~uint64_t{0};
  manifest.meta.sequences = 96;
  manifest.meta.graph_fingerprint = 0x0123456789abcdef;
  manifest.meta.spec = "{\"name\": \"caf\xc3\xa9\"}\n";
  manifest.files = {{"rank-0.bin", 192}};
  manifest.tensors = {{"a",
                       CheckpointRole::kParameter,
                       {DType::kF32, 3, 8},
                       "rank-0.bin",
                       0,
                       0xdeadbeef},
                      {"b",
                       CheckpointRole::kFirstMoment,
                       {DType::kF32, 5},
                       "rank-0.bin",
                       128,
                       1}};
  return manifest;
}

// Gives a body that was tampered with a right checksum.
std::string Seal(const std::string& text) {
  const std::string body = text.substr(0, text.rfind("\"crc32c\""));
  char digits[9];
  std::snprintf(digits, sizeof(digits), "%08x",
                Crc32c(0, body.data(), static_cast<int64_t>(body.size())));
  return absl::StrCat(body, "\"crc32c\":\"", digits, "\"\n}\n");
}

// Parses the good manifest with `from` replaced by `to`.
absl::Status Tampered(absl::string_view from, absl::string_view to) {
  const std::string good = *PrintManifest(TwoTensors());
  EXPECT_TRUE(absl::StrContains(good, from)) << from;
  return ParseManifest(Seal(absl::StrReplaceAll(good, {{from, to}}))).status();
}

void ExpectDamaged(absl::string_view from, absl::string_view to,
                   absl::string_view message) {
  const absl::Status status = Tampered(from, to);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss)
      << from << " -> " << to << ": " << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(message)))
      << from << " -> " << to;
}

TEST(Manifest, ComesBackAsItWas) {
  const Manifest written = TwoTensors();
  const auto text = PrintManifest(written);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(Seal(*text), *text);
  const auto read = ParseManifest(*text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->meta.step, 12);
  EXPECT_EQ(read->meta.attempt, 3);
  EXPECT_EQ(read->meta.seed, ~uint64_t{0});
  EXPECT_EQ(read->meta.sequences, 96);
  EXPECT_EQ(read->meta.graph_fingerprint, 0x0123456789abcdefu);
  EXPECT_EQ(read->meta.spec, written.meta.spec);
  ASSERT_EQ(read->tensors.size(), 2u);
  EXPECT_EQ(read->tensors[0].name, "a");
  EXPECT_EQ(read->tensors[0].type, TensorType(DType::kF32, 3, 8));
  EXPECT_EQ(read->tensors[0].crc, 0xdeadbeefu);
  EXPECT_EQ(read->tensors[1].role, CheckpointRole::kFirstMoment);
  EXPECT_EQ(read->tensors[1].offset, 128);
}

TEST(Manifest, RefusesTextThatIsNotUtf8) {
  Manifest manifest = TwoTensors();
  manifest.meta.spec = "\xff";
  EXPECT_EQ(PrintManifest(manifest).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Manifest, RefusesAnotherVersion) {
  EXPECT_EQ(Tampered("\"version\":1", "\"version\":2").code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Manifest, RefusesWhatIsNoManifest) {
  for (const char* body : {"", "{", "[]", "null", "{}", "1", "\"x\"",
                           "{\"format\":\"safetensors\",\"version\":1,"}) {
    EXPECT_EQ(ParseManifest(Seal(body)).status().code(),
              absl::StatusCode::kDataLoss)
        << body;
    EXPECT_EQ(ParseManifest(body).status().code(), absl::StatusCode::kDataLoss)
        << body;
  }
  ExpectDamaged("ebb-checkpoint", "other", "unknown format");
}

TEST(Manifest, ChecksEveryNumber) {
  for (const char* value : {"-1", "1.5", "\"1\"", "true", "null", "[]",
                            "9223372036854775808", "1e400"}) {
    for (const char* key : {"step", "attempt", "sequences"}) {
      const std::string good = key == std::string("step") ? "\"step\":12"
                               : key == std::string("attempt")
                                   ? "\"attempt\":3"
                                   : "\"sequences\":96";
      EXPECT_EQ(Tampered(good, absl::StrCat("\"", key, "\":", value)).code(),
                absl::StatusCode::kDataLoss)
          << key << " " << value;
    }
    EXPECT_EQ(
        Tampered("\"offset\":128", absl::StrCat("\"offset\":", value)).code(),
        absl::StatusCode::kDataLoss)
        << value;
    EXPECT_EQ(
        Tampered("\"bytes\":192", absl::StrCat("\"bytes\":", value)).code(),
        absl::StatusCode::kDataLoss)
        << value;
  }
  ExpectDamaged("\"attempt\":3", "\"attempt\":2147483648", "attempt");
  ExpectDamaged("\"seed\":18446744073709551615", "\"seed\":-1", "seed");
  ExpectDamaged("0123456789abcdef", "0123456789abcdeg", "graph_fingerprint");
  ExpectDamaged("0123456789abcdef", "123", "graph_fingerprint");
}

TEST(Manifest, ChecksShapesAgainstBytes) {
  ExpectDamaged("[3,8]", "[3,9]", "bytes and shape disagree: parameter a");
  // A product that wraps around to the right number of bytes, or to 0.
  ExpectDamaged("[3,8]", "[4294967296,4294967296]", "bytes and shape disagree");
  ExpectDamaged("[3,8]", "[4611686018427387928,1]", "bytes and shape disagree");
  ExpectDamaged("[3,8]", "[0,8]", "positive");
  ExpectDamaged("[3,8]", "[-3,-8]", "positive");
  ExpectDamaged("[3,8]", "[]", "1 to 4 dims");
  ExpectDamaged("[3,8]", "[1,1,3,8,1]", "1 to 4 dims");
  ExpectDamaged("[3,8]", "24", "1 to 4 dims");
  ExpectDamaged("fp32", "fp31", "unknown dtype");
  ExpectDamaged("fp32", "none", "unknown dtype");
  ExpectDamaged("fp32", "bf16", "bytes and shape disagree");
}

TEST(Manifest, ChecksOffsetsAgainstFiles) {
  ExpectDamaged("\"offset\":128", "\"offset\":64", "expected offset 128");
  ExpectDamaged("\"offset\":128", "\"offset\":0", "first_moment b");
  ExpectDamaged("\"offset\":128", "\"offset\":129", "not aligned");
  ExpectDamaged("\"offset\":128", "\"offset\":192", "ends behind its file");
  ExpectDamaged("\"offset\":128", "\"offset\":9223372036854775744",
                "ends behind its file");
  ExpectDamaged("\"bytes\":192", "\"bytes\":256", "rank-0.bin");
  ExpectDamaged("\"bytes\":192", "\"bytes\":191", "not aligned");
  ExpectDamaged("\"bytes\":192", "\"bytes\":64", "ends behind its file");
}

TEST(Manifest, ChecksNames) {
  for (const char* name :
       {"../rank-0.bin", "/etc/passwd", "rank-0.bin/..", "rank-.bin", "",
        "rank-1234567.bin", "manifest.json", "rank-0.bin\\u0000"}) {
    ExpectDamaged("rank-0.bin", name, "not rank-R.bin");
  }
  ExpectDamaged("\"name\":\"rank-0.bin\"", "\"name\":\"rank-1.bin\"",
                "not in the list of files");
  ExpectDamaged("\"name\":\"a\"", "\"name\":\"\"", "empty name");
  ExpectDamaged("\"role\":\"parameter\"", "\"role\":\"weights\"",
                "unknown role");
}

TEST(Manifest, RefusesTwoOfOneName) {
  Manifest manifest = TwoTensors();
  manifest.tensors[1].name = "a";
  EXPECT_TRUE(ParseManifest(*PrintManifest(manifest)).ok());
  manifest.tensors[1].role = CheckpointRole::kParameter;
  auto status = ParseManifest(*PrintManifest(manifest)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("second tensor"));
  manifest = TwoTensors();
  manifest.files.push_back(manifest.files[0]);
  status = ParseManifest(*PrintManifest(manifest)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("second file"));
}

TEST(Manifest, MissingMembersAreNamed) {
  for (const char* key : {"format", "version", "step", "attempt", "seed",
                          "sequences", "graph_fingerprint", "spec", "files",
                          "tensors", "dtype", "shape", "offset", "role"}) {
    ExpectDamaged(absl::StrCat("\"", key, "\":"),
                  "\"other\":", absl::StrCat("no ", key));
  }
}

TEST(Manifest, DeepNestingIsNoDanger) {
  const std::string deep(200000, '[');
  EXPECT_EQ(Tampered("[3,8]", deep).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Tampered("[3,8]", deep + std::string(200000, ']')).code(),
            absl::StatusCode::kDataLoss);
}

// Edits that a right checksum covers: parsed or refused, never a crash, and
// what is parsed holds together.
TEST(Manifest, SurvivesArbitraryEdits) {
  const std::string good = *PrintManifest(TwoTensors());
  const char* const pieces[] = {"0", "-", "9999999999", "\"", "[",    "]",
                                "{", "}", ",",          ":",  "null", "1e9"};
  uint64_t state = 1234;
  const auto next = [&state](uint64_t below) {
    state = philox::Mix(state);
    return state % below;
  };
  int parsed = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text = good;
    for (uint64_t edits = 1 + next(3); edits > 0; --edits) {
      const size_t at = next(text.size());
      const uint64_t kind = next(3);
      if (kind == 0) text[at] = static_cast<char>(next(256));
      if (kind == 1) text.erase(at, 1 + next(4));
      if (kind == 2) text.insert(at, pieces[next(std::size(pieces))]);
    }
    const auto manifest = ParseManifest(Seal(text));
    if (!manifest.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(manifest.status()) ||
                  absl::IsFailedPrecondition(manifest.status()))
          << manifest.status();
      continue;
    }
    ++parsed;
    for (const CheckpointEntry& entry : manifest->tensors) {
      EXPECT_EQ(entry.file, manifest->files[0].name);
      EXPECT_GE(entry.offset, 0);
      EXPECT_LE(entry.offset + entry.type.bytes(), manifest->files[0].bytes);
    }
  }
  EXPECT_GT(parsed, 100);  // an edit of the spec's text, for one
  EXPECT_LT(parsed, 4000);
}

}  // namespace
}  // namespace ebb
