// A script plays ebb-worker.
#include "server/job_sample.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JobSampleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/sampleXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    request_.set_id("a1b2c3d4");
    request_.set_text("Once \n\xff");
    request_.set_num_tokens(3);
    request_.set_temperature(0.1);
    request_.set_seed(18446744073709551615u);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  absl::Status Run(const std::string& lines) {
    const std::string path = directory_ + "/ebb-worker";
    std::ofstream(path) << "#!/bin/sh\n" << lines << "\n";
    chmod(path.c_str(), 0700);
    JobTools tools(path, 1);
    return SampleThroughWorker(
        tools, "/jobs/x/checkpoints", request_,
        {.on_chunk =
             [this](const v1::SampleChunk& chunk) {
               step_ = chunk.step();
               text_ += chunk.text();
               for (const int32_t id : chunk.token_ids()) {
                 ids_.push_back(id);
               }
               return true;
             },
         .is_cancelled = [] { return false; }});
  }

  std::string directory_;
  v1::SampleJobRequest request_;
  int64_t step_ = 0;
  std::string text_;
  std::vector<int32_t> ids_;
};

TEST_F(JobSampleTest, TextComesAsItIs) {
  EXPECT_EQ(Run("printf '12\\n7\\nb\\377'; cat"), absl::OkStatus());
  EXPECT_EQ(step_, 12);
  EXPECT_EQ(text_, "7\nb\xffOnce \n\xff");
  EXPECT_THAT(ids_, ElementsAre());
}

TEST_F(JobSampleTest, FlagsSayWhatTheRequestSays) {
  EXPECT_EQ(Run("echo 1; echo \"$*\""), absl::OkStatus());
  EXPECT_EQ(text_,
            "--sample /jobs/x/checkpoints --step 0 --tokens 3 "
            "--temperature 0.10000000000000001 --top-k 0 --seed "
            "18446744073709551615\n");
}

TEST_F(JobSampleTest, TokenIdsGoAndComeAsNumbers) {
  for (const int id : {3, 500}) request_.mutable_token_ids()->add_ids(id);
  EXPECT_EQ(Run("echo 12; cat | tr ' ' '\\n'; echo"), absl::OkStatus());
  EXPECT_THAT(ids_, ElementsAre(3, 500));
  EXPECT_EQ(text_, "");
}

TEST_F(JobSampleTest, OutputThatIsNoSampleIsInternal) {
  for (const char* lines : {"echo hello", "echo 0", "head -c 100 /dev/zero"}) {
    EXPECT_EQ(Run(lines).code(), absl::StatusCode::kInternal) << lines;
  }
}

TEST_F(JobSampleTest, TheWorkersErrorIsTheCalls) {
  const absl::Status status =
      Run("echo 'ebb-worker: no checkpoint of step 7' >&2; exit 73");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("of step 7"));
}

}  // namespace
}  // namespace ebb
