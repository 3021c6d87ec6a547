// Faults of token files, each with what was expected and found.
#include "worker/data/token_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/data/testing/token_file_writer.h"

namespace ebb {
namespace {

using testing::Bytes;
using ::testing::HasSubstr;
using testing::LlmcHeader;
using testing::MegatronIndexFields;
using testing::MegatronIndexOf;
using testing::ScatteredTokens;
using testing::TemporaryDirectory;
using testing::WriteFile;
using testing::WriteGpt2Tokens;

absl::StatusOr<std::unique_ptr<TokenFiles>> Open(
    const std::string& pattern, DataFormat format = DataFormat::kAuto,
    int64_t vocab = 257, int64_t seq_len = 32) {
  return TokenFiles::Open("data.train", pattern, format, vocab, seq_len);
}

// Expects INVALID_ARGUMENT that names field and path and says all of `parts`.
void ExpectRefused(const std::string& path, std::vector<std::string> parts,
                   DataFormat format = DataFormat::kAuto,
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::Status status = Open(path, format).status();
  EXPECT_EQ(status.code(), code) << status;
  parts.push_back(path);
  parts.push_back("data.train");
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

// All tokens of the first file's sequences, and the last target.
std::vector<int32_t> ReadAll(const TokenFiles& files) {
  std::vector<int32_t> all;
  std::vector<int32_t> tokens(files.seq_len()), targets(files.seq_len());
  for (int64_t i = 0; i < files.num_sequences(); ++i) {
    EXPECT_TRUE(files.Read(i, tokens, targets).ok());
    all.insert(all.end(), tokens.begin(), tokens.end());
    for (int64_t j = 0; j + 1 < files.seq_len(); ++j) {
      EXPECT_EQ(targets[j], tokens[j + 1]);
    }
  }
  if (files.num_sequences() > 0) all.push_back(targets.back());
  return all;
}

class TokenFilesTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& contents) {
    return WriteFile(directory_ / name, contents);
  }

  TemporaryDirectory directory_;
};

TEST_F(TokenFilesTest, ReadsGpt2Tokens) {
  const std::vector<uint16_t> written = ScatteredTokens(20001);
  const std::string path = WriteGpt2Tokens(directory_ / "d0.bin", written);
  EXPECT_EQ(std::filesystem::file_size(path), 41026u);
  auto files = Open(path);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->format(), DataFormat::kLlmc);
  EXPECT_EQ((*files)->num_sequences(), 625);
  EXPECT_EQ((*files)->counts().tokens, 20001);
  EXPECT_EQ((*files)->counts().bytes, 41026);
  EXPECT_EQ((*files)->counts().unused_tokens, 0);
  EXPECT_EQ(ReadAll(**files),
            std::vector<int32_t>(written.begin(), written.end()));
}

TEST_F(TokenFilesTest, ReadsLlama3TokensAtTheirWidth) {
  std::vector<uint32_t> written;
  for (uint32_t i = 0; i < 65; ++i) written.push_back(128000 - 1000 * i);
  const std::string path =
      Write("llama.bin", LlmcHeader(20240801, 7, 65) + Bytes(written));
  auto files = Open(path, DataFormat::kAuto, 128256);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(ReadAll(**files),
            std::vector<int32_t>(written.begin(), written.end()));
  EXPECT_TRUE(Open(path, DataFormat::kLlmc, 128256).ok());
}

TEST_F(TokenFilesTest, RefusesUnknownMagics) {
  const std::string tokens = Bytes(ScatteredTokens(100));
  const std::string found = "expected magic 20240520 (GPT-2) or 20240801";
  for (const char* name : {"x.bin", "x.tokens"}) {
    ExpectRefused(Write(name, LlmcHeader(20240521, 1, 100) + tokens),
                  {found, "found 20240521", "set data.format to text"});
    const int32_t swapped = __builtin_bswap32(20240520);
    ExpectRefused(Write(name, LlmcHeader(swapped, 1, 100) + tokens),
                  {found, "20240520 with its bytes swapped"});
  }
  ExpectRefused(Write("text", "a text"), {found, "found 1702109281"},
                DataFormat::kLlmc);
}

TEST_F(TokenFilesTest, RefusesATextNamedBinUnlessToldThatItIsText) {
  const std::string path =
      Write("text.bin", "In the beginning God created the heaven.");
  ExpectRefused(path, {"expected magic", "set data.format to text"});
  EXPECT_TRUE(Open(path, DataFormat::kText).ok());
  ExpectRefused(Write("short.bin", "ab"), {"expected magic"});
}

TEST_F(TokenFilesTest, RefusesAVersionThatIsNotTheMagics) {
  const std::string tokens = Bytes(ScatteredTokens(100));
  ExpectRefused(Write("a.bin", LlmcHeader(20240520, 2, 100) + tokens),
                {"wrong version", "expected 1, found 2"});
  ExpectRefused(Write("b.bin", LlmcHeader(20240520, 7, 50) + tokens),
                {"wrong version", "expected 1, found 7"});
  ExpectRefused(Write("c.bin", LlmcHeader(20240801, 1, 50) + tokens),
                {"wrong version", "expected 7, found 1"});
}

TEST_F(TokenFilesTest, NeverReadsAtTheWrongWidth) {
  // 100 uint16 under the magic of uint32, and 50 uint32 under that of uint16.
  const std::string tokens = Bytes(ScatteredTokens(100));
  ExpectRefused(
      Write("a.bin", LlmcHeader(20240801, 7, 100) + tokens),
      {"wrong size: 100 tokens of 4 bytes", "make 1424 bytes", "found 1224"});
  ExpectRefused(
      Write("b.bin", LlmcHeader(20240520, 1, 50) + tokens),
      {"wrong size: 50 tokens of 2 bytes", "make 1124 bytes", "found 1224"});
}

TEST_F(TokenFilesTest, RefusesWrongCounts) {
  const std::string tokens = Bytes(ScatteredTokens(100));
  for (int32_t count : {0, -1}) {
    ExpectRefused(
        Write("a.bin", LlmcHeader(20240520, 1, count) + tokens),
        {"token count", "at least 1", "found " + std::to_string(count)});
  }
  ExpectRefused(Write("b.bin", LlmcHeader(20240520, 1, 101) + tokens),
                {"101 tokens", "make 1226 bytes", "found 1224"});
  ExpectRefused(Write("c.bin", LlmcHeader(20240520, 1, 99) + tokens),
                {"99 tokens", "make 1222 bytes", "found 1224"});
  ExpectRefused(Write("d.bin", LlmcHeader(20240520, 1, 100) + tokens + "x"),
                {"make 1224 bytes", "found 1225"});
}

TEST_F(TokenFilesTest, RefusesHeadersWithoutTokens) {
  const std::string header = LlmcHeader(20240520, 1, 0);
  ExpectRefused(Write("a.bin", header), {"at least 1, found 0"});
  ExpectRefused(Write("b.bin", LlmcHeader(20240520, 1, 100)),
                {"make 1224 bytes", "found 1024"});
  for (size_t bytes : {4u, 8u, 12u, 1023u}) {
    ExpectRefused(Write("c.bin", header.substr(0, bytes)),
                  {"header cut short: expected 1024 bytes, found " +
                   std::to_string(bytes)});
  }
}

TEST_F(TokenFilesTest, RefusesWhatIsNoRegularFile) {
  ExpectRefused(directory_.path(), {"expected a regular file, found a direct"});
  const std::string fifo = directory_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ExpectRefused(fifo, {"expected a regular file, found a FIFO"});
  ExpectRefused("/dev/null", {"expected a regular file, found a device"});
}

TEST_F(TokenFilesTest, RefusesAFileWithoutReadPermission) {
  const std::string path = Write("secret.txt", std::string(100, 'x'));
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  // The superuser may read everything: be somebody else meanwhile.
  const uid_t user = geteuid();
  if (user == 0) {
    ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
    ASSERT_EQ(seteuid(65534), 0);
  }
  ExpectRefused(path, {"cannot open: Permission denied"});
  if (user == 0) {
    ASSERT_EQ(seteuid(0), 0);
  }
}

TEST_F(TokenFilesTest, RefusesEmptyFilesAndPatternsWithoutMatch) {
  ExpectRefused(Write("empty.txt", ""), {"empty file", "found 0 bytes"});
  ExpectRefused(Write("empty.bin", ""), {"empty file", "found 0 bytes"});
  ExpectRefused(directory_ / "none.txt", {"no such file"}, DataFormat::kAuto,
                absl::StatusCode::kNotFound);
  ExpectRefused(directory_ / "*.none", {"no such file, nor one that matches"},
                DataFormat::kAuto, absl::StatusCode::kNotFound);
}

TEST_F(TokenFilesTest, RefusesAnEmptyFileAmongShards) {
  Write("a.txt", "some text");
  Write("b.txt", "");
  const absl::Status status = Open(directory_ / "*.txt").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory_ / "b.txt"));
}

TEST_F(TokenFilesTest, RefusesShardsOfDifferentFormats) {
  const std::string first =
      WriteGpt2Tokens(directory_ / "a.x", ScatteredTokens(50));
  const std::string second = Write("b.x", std::string(100, 'x'));
  const absl::Status status = Open(directory_ / "?.x").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(first));
  EXPECT_THAT(std::string(status.message()), HasSubstr(second));
}

TEST_F(TokenFilesTest, ReadsMegatronPairsWithDocumentsRunningOn) {
  const std::vector<uint16_t> written = ScatteredTokens(97);
  const std::string bin = Write("pair.bin", Bytes(written));
  const std::string idx =
      Write("pair.idx", MegatronIndexOf({40, 7, 50}, 2).bytes());
  for (const std::string& name :
       {bin, idx, directory_ / "pair", directory_ / "pair*"}) {
    SCOPED_TRACE(name);
    for (const DataFormat format : {DataFormat::kAuto, DataFormat::kMegatron}) {
      auto files = Open(name, format);
      ASSERT_TRUE(files.ok()) << files.status();
      EXPECT_EQ((*files)->format(), DataFormat::kMegatron);
      EXPECT_EQ((*files)->counts().files, 1);
      EXPECT_EQ((*files)->counts().tokens, 97);
      EXPECT_EQ((*files)->num_sequences(), 3);
      EXPECT_EQ(ReadAll(**files),
                std::vector<int32_t>(written.begin(), written.end()));
    }
  }
}

TEST_F(TokenFilesTest, ReadsMegatronTokensOfFourBytes) {
  std::vector<int32_t> written;
  for (int32_t i = 0; i < 65; ++i) written.push_back(128000 - 1000 * i);
  const std::string path = Write("wide.bin", Bytes(written));
  Write("wide.idx", MegatronIndexOf({65}, 4).bytes());
  auto files = Open(path, DataFormat::kAuto, 128256);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(ReadAll(**files), written);
  written[3] = -7;
  Write("wide.bin", Bytes(written));
  EXPECT_THAT(
      std::string(Open(path, DataFormat::kAuto, 128256).status().message()),
      HasSubstr("found -7 at byte 12"));
}

// cases.md G3: the data beside a good index.
TEST_F(TokenFilesTest, RefusesMegatronDataThatItsIndexDoesNotDescribe) {
  const std::string bin = directory_ / "pair.bin";
  Write("pair.idx", MegatronIndexOf({40, 7, 50}, 2).bytes());
  for (const DataFormat format : {DataFormat::kAuto, DataFormat::kMegatron}) {
    std::filesystem::remove(bin);
    ExpectRefused(directory_ / "pair.idx", {bin, "cannot open"}, format);
    Write("pair.bin", Bytes(ScatteredTokens(97)).substr(1));
    ExpectRefused(bin, {"expected 194 bytes for the 97 tokens", "found 193"},
                  format);
    Write("pair.bin", "");
    ExpectRefused(bin, {"expected 194 bytes", "found 0"}, format);
  }
  Write("alone.bin", Bytes(ScatteredTokens(97)));
  ExpectRefused(directory_ / "alone.bin", {"alone.idx", "cannot open"},
                DataFormat::kMegatron);
  ExpectRefused(directory_ / "alone.bin", {"needs its .idx beside it"});
}

TEST_F(TokenFilesTest, NamesTheIndexThatIsWrong) {
  MegatronIndexFields fields = MegatronIndexOf({40, 7, 50}, 2);
  fields.magic[0] = 'X';
  const std::string idx = Write("pair.idx", fields.bytes());
  ExpectRefused(Write("pair.bin", Bytes(ScatteredTokens(97))),
                {idx, "magic: expected MMIDIDX"});
}

TEST_F(TokenFilesTest, AnLlmcFileStaysOneWhateverLiesBesideIt) {
  const std::string path =
      WriteGpt2Tokens(directory_ / "d.bin", ScatteredTokens(100));
  Write("d.idx", "notes");
  auto files = Open(path);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->format(), DataFormat::kLlmc);
}

TEST_F(TokenFilesTest, RefusesIdsOutsideTheVocabularyAtOpen) {
  std::vector<uint16_t> tokens = ScatteredTokens(100);
  tokens[70] = 300;
  const std::string path = WriteGpt2Tokens(directory_ / "a.bin", tokens);
  ExpectRefused(path, {"outside the vocabulary", "expected below 257",
                       "found 300 at byte 1164"});
  EXPECT_TRUE(Open(path, DataFormat::kAuto, 301).ok());
  EXPECT_FALSE(Open(path, DataFormat::kAuto, 300).ok());
}

TEST_F(TokenFilesTest, FindsLaterIdsOutsideTheVocabularyWhenTheyAreRead) {
  std::vector<uint16_t> tokens(1'100'001, 5);
  tokens[1'090'000] = 257;
  const std::string path = WriteGpt2Tokens(directory_ / "a.bin", tokens);
  auto files = Open(path, DataFormat::kAuto, 257, 100);
  ASSERT_TRUE(files.ok()) << files.status();
  std::vector<int32_t> inputs(100), targets(100);
  EXPECT_TRUE((*files)->Read(10898, inputs, targets).ok());
  // As a target of one sequence and as an input of the next.
  for (int64_t sequence : {10899, 10900}) {
    const absl::Status status = (*files)->Read(sequence, inputs, targets);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr("expected below 257, found 257 at byte 2181024: " + path));
  }
  EXPECT_TRUE((*files)->Read(10901, inputs, targets).ok());
}

TEST_F(TokenFilesTest, RefusesTextForASmallVocabulary) {
  const std::string path = Write("a.txt", std::string(100, 'x'));
  const absl::Status status = Open(path, DataFormat::kAuto, 256).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("vocabulary of 257: model.vocab is 256"));
}

TEST_F(TokenFilesTest, NoticesAFileThatWasCut) {
  const std::string path = Write("a.txt", std::string(100000, 'x'));
  auto files = Open(path);
  ASSERT_TRUE(files.ok());
  std::filesystem::resize_file(path, 10);
  std::vector<int32_t> inputs(32), targets(32);
  const absl::Status status = (*files)->Read(3000, inputs, targets);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("expected 100000 bytes, found 10"));
}

TEST_F(TokenFilesTest, KeepsReadingAFileThatWasReplaced) {
  const std::string path = Write("a.txt", std::string(100, 'x'));
  auto files = Open(path);
  ASSERT_TRUE(files.ok());
  std::filesystem::rename(Write("b.txt", "other"), path);
  EXPECT_EQ(ReadAll(**files)[0], 'x');
}

// Every byte as it is, and 256 behind the last one.
TEST_F(TokenFilesTest, KeepsTextThatIsNotClean) {
  std::string every_byte;
  for (int i = 0; i < 256; ++i) every_byte.push_back(static_cast<char>(i));
  const std::vector<std::string> texts = {
      "\xff\xfe",
      "cut \xe2\x82",
      "dos\r\nlines\r\n",
      "old\rmac\r",
      std::string("nul\0nul\0", 8),
      "\xef\xbb\xbf"
      "byte order mark",
      "\n\n\n\n",
      "x",
      every_byte,
      std::string(5'000'000, 'l'),
  };
  for (const std::string& text : texts) {
    const std::string path = Write("t.txt", text);
    auto files = Open(path, DataFormat::kAuto, 257, 1);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ((*files)->format(), DataFormat::kText);
    EXPECT_EQ((*files)->counts().tokens, static_cast<int64_t>(text.size()) + 1);
    // Few bytes at a time would be slow on the long one.
    const int64_t seq_len = static_cast<int64_t>(text.size());
    files = Open(path, DataFormat::kAuto, 257, seq_len);
    ASSERT_TRUE(files.ok());
    const std::vector<int32_t> ids = ReadAll(**files);
    ASSERT_EQ(ids.back(), kEndOfText);
    std::string decoded;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      ASSERT_LT(ids[i], 256);
      decoded.push_back(static_cast<char>(ids[i]));
    }
    EXPECT_TRUE(decoded == text);
  }
}

TEST_F(TokenFilesTest, UsesTheLastTokenAsATarget) {
  // seq_len + 1 tokens exactly: one sequence.
  auto files = Open(Write("a.txt", "abcd"), DataFormat::kAuto, 257, 4);
  ASSERT_TRUE(files.ok());
  ASSERT_EQ((*files)->num_sequences(), 1);
  std::vector<int32_t> tokens(4), targets(4);
  ASSERT_TRUE((*files)->Read(0, tokens, targets).ok());
  EXPECT_EQ(tokens, (std::vector<int32_t>{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(targets, (std::vector<int32_t>{'b', 'c', 'd', 256}));
}

TEST_F(TokenFilesTest, SequencesDoNotCrossTheEndOfAFile) {
  Write("1.txt", "abcdef");  // 7 tokens: 3 sequences of 2
  Write("2.txt", "g");       // 2 tokens: none
  Write("3.txt", "hij");     // 4 tokens: 1 and one target left
  Write("4.txt", "k");       // none
  auto files = Open(directory_ / "?.txt", DataFormat::kAuto, 257, 2);
  ASSERT_TRUE(files.ok());
  const TokenCounts& counts = (*files)->counts();
  EXPECT_EQ(counts.files, 4);
  EXPECT_EQ(counts.bytes, 11);
  EXPECT_EQ(counts.tokens, 15);
  EXPECT_EQ(counts.sequences, 4);
  EXPECT_EQ(counts.unused_tokens, 3);
  EXPECT_EQ(counts.unused_files, 2);
  // The documented remainder is all that is left out.
  EXPECT_EQ(counts.tokens - counts.files,
            counts.sequences * 2 + counts.unused_tokens);
  const std::vector<std::vector<int32_t>> expected = {{'a', 'b', 'b', 'c'},
                                                      {'c', 'd', 'd', 'e'},
                                                      {'e', 'f', 'f', 256},
                                                      {'h', 'i', 'i', 'j'}};
  for (int64_t i = 0; i < 4; ++i) {
    std::vector<int32_t> tokens(2), targets(2);
    ASSERT_TRUE((*files)->Read(i, tokens, targets).ok());
    tokens.insert(tokens.end(), targets.begin(), targets.end());
    EXPECT_EQ(tokens, expected[i]) << i;
  }
}

// Any bytes at all are taken or refused; nothing crashes, and a file that opens
// reads to its end.
TEST_F(TokenFilesTest, SurvivesArbitraryBytes) {
  const std::string good =
      LlmcHeader(20240520, 1, 100) + Bytes(ScatteredTokens(100));
  uint64_t state = 1234;
  const auto next = [&state] {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state >> 33);
  };
  int opened = 0;
  for (int round = 0; round < 500; ++round) {
    std::string bytes =
        good.substr(0, round % 3 ? good.size() : next() % good.size());
    for (uint32_t i = next() % 4; i > 0 && !bytes.empty(); --i) {
      const size_t at = next() % 2 ? next() % 12 : next();
      bytes[at % bytes.size()] = static_cast<char>(next());
    }
    const std::string path = Write(round % 2 ? "x.bin" : "x", bytes);
    auto files = Open(path, DataFormat::kAuto, 70000, 7);
    if (files.ok()) {
      ++opened;
      ReadAll(**files);
    } else {
      EXPECT_EQ(files.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
  EXPECT_GT(opened, 50);
  EXPECT_LT(opened, 450);
}

}  // namespace
}  // namespace ebb
