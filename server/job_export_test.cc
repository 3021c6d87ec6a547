// What a worker's export prints becomes an answer. A script plays ebb-worker.
#include "server/job_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace ebb {
namespace {

using ::testing::ElementsAre;

// Exports with a worker that runs this line of shell.
absl::StatusOr<v1::ExportJobResponse> Export(const std::string& line) {
  std::string directory = ::testing::TempDir() + "/exportXXXXXX";
  EXPECT_NE(mkdtemp(directory.data()), nullptr);
  const std::string program = directory + "/ebb-worker";
  std::ofstream(program) << "#!/bin/sh\n" << line << "\n";
  chmod(program.c_str(), 0700);
  JobTools tools(program, 1);
  v1::ExportJobRequest request;
  request.set_id("a1b2c3d4");
  request.set_directory("/to/hf");
  request.set_step(6);
  request.set_shard_bytes(1000);
  auto response = ExportThroughWorker(tools, "/job/checkpoints", request,
                                      [] { return false; });
  std::filesystem::remove_all(directory);
  return response;
}

TEST(JobExport, TellsTheWorkerAndReadsItsAnswer) {
  const auto response = Export(
      "[ \"$*\" = '--export /job/checkpoints --to /to/hf --step 6 "
      "--shard-bytes 1000' ] && echo '{\"step\":6,\"checkpoint\":\"/c/step-6\","
      "\"directory\":\"/to/hf\",\"files\":[\"config.json\"],"
      "\"bytes\":5000000000}'");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->id(), "a1b2c3d4");
  EXPECT_EQ(response->step(), 6);
  EXPECT_EQ(response->checkpoint_directory(), "/c/step-6");
  EXPECT_EQ(response->directory(), "/to/hf");
  EXPECT_THAT(response->files(), ElementsAre("config.json"));
  EXPECT_EQ(response->bytes(), 5'000'000'000);
}

TEST(JobExport, TheWorkersErrorIsTheAnswer) {
  EXPECT_EQ(Export("echo 'ebb-worker: not empty' >&2; exit 73").status(),
            absl::FailedPreconditionError("not empty"));
}

TEST(JobExport, AnAnswerThatIsNoneIsAFaultOfOurs) {
  for (const char* line :
       {"true", "echo '[]'", "echo '{}'", "echo '{'", "echo '{\"step\":-1}'"}) {
    SCOPED_TRACE(line);
    EXPECT_EQ(Export(line).status().code(), absl::StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace ebb
