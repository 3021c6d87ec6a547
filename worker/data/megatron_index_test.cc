// cases.md G3: an index that lies is refused at open, field by field.
#include "worker/data/megatron_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "worker/data/testing/token_file_writer.h"

namespace ebb {
namespace {

using testing::Bytes;
using ::testing::HasSubstr;
using testing::MegatronIndexFields;
using testing::MegatronIndexOf;
using testing::TemporaryDirectory;
using testing::WriteFile;

class MegatronIndexTest : public ::testing::Test {
 protected:
  void ExpectRefused(const std::string& bytes, const std::string& part) {
    SCOPED_TRACE(part);
    const absl::Status status =
        ReadMegatronIndex(WriteFile(directory_ / "x.idx", bytes)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }

  // The good index, changed.
  void ExpectRefused(const std::function<void(MegatronIndexFields&)>& change,
                     const std::string& part) {
    MegatronIndexFields fields = good_;
    change(fields);
    ExpectRefused(fields.bytes(), part);
  }

  TemporaryDirectory directory_;
  const MegatronIndexFields good_ = MegatronIndexOf({40, 7, 50}, 2);
};

TEST_F(MegatronIndexTest, ReadsAGoodIndex) {
  const std::string bytes = good_.bytes();
  ASSERT_EQ(bytes.size(), 102u);
  EXPECT_TRUE(IsMegatronIndex(bytes));
  const auto index = ReadMegatronIndex(WriteFile(directory_ / "x.idx", bytes));
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->token_bytes, 2);
  EXPECT_EQ(index->tokens, 97);
  EXPECT_EQ(index->bytes(), 194);
  EXPECT_EQ(index->sequences, 3);
  EXPECT_EQ(index->documents, 3);
}

// Tables longer than what is held of them.
TEST_F(MegatronIndexTest, ReadsALongIndex) {
  const MegatronIndexFields fields =
      MegatronIndexOf(std::vector<int32_t>(100'000, 3), 4);
  const auto index =
      ReadMegatronIndex(WriteFile(directory_ / "x.idx", fields.bytes()));
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->bytes(), 1'200'000);
}

TEST_F(MegatronIndexTest, RefusesCutFiles) {
  const std::string bytes = good_.bytes();
  ExpectRefused(bytes.substr(0, 101), "size: expected 102 bytes");
  ExpectRefused(bytes.substr(0, 33), "header: expected 34 bytes, found 33");
  ExpectRefused(bytes.substr(0, 9), "header: expected 34 bytes, found 9");
  ExpectRefused("", "header: expected 34 bytes, found 0");
  ExpectRefused(bytes + "x", "size: expected 102 bytes");
}

TEST_F(MegatronIndexTest, RefusesWrongHeaders) {
  ExpectRefused([](auto& f) { f.magic = "MMIDIDX_\1"; }, "magic: expected");
  ExpectRefused([](auto& f) { f.version = 2; }, "version: expected 1, found 2");
  for (const int code : {0, 7, 99}) {
    ExpectRefused([&](auto& f) { f.dtype = static_cast<uint8_t>(code); },
                  "dtype code: expected 4 (int32) or 8 (uint16), found " +
                      std::to_string(code));
  }
  ExpectRefused([](auto& f) { f.sequence_count = int64_t{1} << 60; },
                "sequence count: expected 1 to 5 in 102 bytes, found "
                "1152921504606846976");
  ExpectRefused([](auto& f) { f.sequence_count = 0; },
                "sequence count: expected 1 to 5");
  ExpectRefused([](auto& f) { f.document_count = int64_t{1} << 61; },
                "document count: expected 2 to 12");
}

TEST_F(MegatronIndexTest, RefusesWrongTables) {
  ExpectRefused([](auto& f) { f.lengths[1] = -7; },
                "length of sequence 1: expected at least 0, found -7");
  ExpectRefused([](auto& f) { f.pointers[2] = 1 << 30; },
                "pointer of sequence 2: expected byte 94");
  ExpectRefused([](auto& f) { f.pointers[0] = -2; }, "pointer of sequence 0");
  ExpectRefused([](auto& f) { f.documents[3] = 2; },
                "document table, last entry: expected the number of sequences, "
                "3, found 2");
  ExpectRefused(
      [](auto& f) {
        f.documents = {0, 2, 1, 3};
      },
      "document table, entry 2: expected 2 to 3, found 1");
  ExpectRefused([](auto& f) { f.documents[1] = 4; },
                "document table, entry 1: expected 0 to 3, found 4");
  ExpectRefused([](auto& f) { f.documents[0] = 1; },
                "document table, entry 0: expected 0, found 1");
  ExpectRefused(
      [](auto& f) {
        f.lengths = {0, 0, 0};
        f.pointers = {0, 0, 0};
      },
      "lengths: expected at least 1 token");
}

TEST_F(MegatronIndexTest, RefusesWhatIsNoFile) {
  EXPECT_FALSE(ReadMegatronIndex(directory_.path()).ok());
  EXPECT_FALSE(ReadMegatronIndex(directory_ / "none.idx").ok());
}

}  // namespace
}  // namespace ebb
