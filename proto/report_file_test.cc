// The report file comes back as written, and damage is found.
#include "proto/report_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "proto/worker_service.pb.h"

namespace ebb {
namespace {

class ReportFile : public ::testing::Test {
 protected:
  ReportFile() {
    std::string pattern = ::testing::TempDir() + "/report_file.XXXXXX";
    directory_ = mkdtemp(pattern.data());
    path_ = ReportFilePath(directory_, 3);
  }
  ~ReportFile() override { std::filesystem::remove_all(directory_); }

  static std::string Message(int64_t sequence) {
    v1::WorkerMessage message;
    message.set_job_id("k3j2h1g0");
    message.set_sequence(sequence);
    message.mutable_report()->mutable_step()->set_step(sequence);
    return message.SerializeAsString();
  }

  std::string Bytes() {
    std::ifstream file(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  void SetBytes(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string directory_;
  std::string path_;
};

TEST_F(ReportFile, ComesBackInOrder) {
  EXPECT_EQ(path_, directory_ + "/rank-3.reports");
  ASSERT_TRUE(WriteReportFile(path_, std::vector{Message(7), Message(8)}).ok());
  auto messages = ReadReportFile(path_);
  ASSERT_TRUE(messages.ok()) << messages.status();
  ASSERT_EQ(messages->size(), 2u);
  EXPECT_EQ((*messages)[0].sequence(), 7);
  EXPECT_EQ((*messages)[1].report().step().step(), 8);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
}

TEST_F(ReportFile, EmptyListComesBack) {
  ASSERT_TRUE(WriteReportFile(path_, {}).ok());
  auto messages = ReadReportFile(path_);
  ASSERT_TRUE(messages.ok()) << messages.status();
  EXPECT_TRUE(messages->empty());
}

TEST_F(ReportFile, MissingIsNotFound) {
  EXPECT_EQ(ReadReportFile(path_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ReportFile, MissingDirectoryIsAnErrorWithThePath) {
  absl::Status status = WriteReportFile("/nonexistent/rank-0.reports", {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("/nonexistent/"), absl::string_view::npos);
}

TEST_F(ReportFile, EveryCutIsDataLoss) {
  ASSERT_TRUE(WriteReportFile(path_, std::vector{Message(7), Message(8)}).ok());
  std::string whole = Bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    SetBytes(whole.substr(0, size));
    EXPECT_EQ(ReadReportFile(path_).status().code(),
              absl::StatusCode::kDataLoss)
        << size;
  }
  SetBytes(whole + "x");
  EXPECT_EQ(ReadReportFile(path_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ReportFile, LyingNumbersAreDataLoss) {
  ASSERT_TRUE(WriteReportFile(path_, std::vector{Message(7)}).ok());
  const std::string whole = Bytes();
  for (size_t offset = 8; offset < 20; ++offset) {  // count and first length
    std::string bytes = whole;
    bytes[offset] = '\xff';
    SetBytes(bytes);
    EXPECT_EQ(ReadReportFile(path_).status().code(),
              absl::StatusCode::kDataLoss)
        << offset;
  }
}

TEST_F(ReportFile, GarbageInsideAMessageIsDataLoss) {
  ASSERT_TRUE(WriteReportFile(path_, std::vector{Message(7)}).ok());
  std::string bytes = Bytes();
  bytes[20] = '\x07';  // field 0 with a wire type that does not exist
  SetBytes(bytes);
  EXPECT_EQ(ReadReportFile(path_).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ebb
