// What doctor sees.
#include "client/checks.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "client/local_coordinator.h"
#include "client/testing/fake_job_service.h"
#include "client/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ebb {
namespace {

using testing::HasSubstr;

class Checks : public testing::Test {
 protected:
  Checks() {
    std::string name = testing::TempDir() + "checks.XXXXXX";
    root_ = mkdtemp(name.data());
    environment_.program_directory = root_;
    environment_.variables["EBB_STATE"] = root_ + "/state";
  }
  ~Checks() override { std::filesystem::remove_all(root_); }

  void WriteProgram(const std::string& name, const std::string& text) {
    const std::string path = root_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    chmod(path.c_str(), 0700);
  }

  std::string root_;
  Environment environment_;
};

TEST_F(Checks, StateDirectory) {
  EXPECT_EQ(CheckStateDirectory(environment_).result, Check::kOk);
  mkdir((root_ + "/state").c_str(), 0755);
  chmod((root_ + "/state").c_str(), 0755);
  const Check check = CheckStateDirectory(environment_);
  EXPECT_EQ(check.result, Check::kFail);
  EXPECT_EQ(check.fix, "chmod 700 " + root_ + "/state");
}

TEST_F(Checks, SocketPath) {
  EXPECT_EQ(CheckSocketPath(environment_).result, Check::kOk);
  environment_.variables["EBB_STATE"] = "/" + std::string(200, 'x');
  EXPECT_EQ(CheckSocketPath(environment_).result, Check::kFail);
}

TEST_F(Checks, CoordinatorThatDoesNotRunIsNoFault) {
  const auto checks = CheckCoordinator(environment_, "", {});
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].result, Check::kOk);
  EXPECT_THAT(checks[0].detail, HasSubstr("none runs"));
}

TEST_F(Checks, CoordinatorOfAnotherVersionIsAWarning) {
  for (const std::string& version : {std::string(kVersion), std::string("9")}) {
    FakeJobService service(version);
    service.Start(root_ + "/socket");
    const auto checks =
        CheckCoordinator(environment_, "unix:" + root_ + "/socket", {});
    ASSERT_EQ(checks.size(), 2u);
    EXPECT_EQ(checks[0].result,
              version == kVersion ? Check::kOk : Check::kWarn);
    EXPECT_EQ(checks[1].name, "metrics");
    EXPECT_EQ(checks[1].detail, "off");
  }
}

TEST_F(Checks, NamedServerThatIsNotThereFails) {
  CallTiming timing;
  timing.num_attempts = 1;
  const auto checks =
      CheckCoordinator(environment_, "unix:" + root_ + "/none", timing);
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].result, Check::kFail);
}

TEST_F(Checks, ProgramsAndDevice) {
  EXPECT_EQ(CheckProgram(environment_, "ebb-worker").result, Check::kFail);
  EXPECT_EQ(CheckDevice(environment_).result, Check::kFail);
  WriteProgram("ebb-worker",
               "[ \"$1\" = --describe ] && echo '{\"backend\": {\"kind\": "
               "\"cpu\", \"instruction_set\": \"avx2\"}}'");
  EXPECT_EQ(CheckProgram(environment_, "ebb-worker").result, Check::kOk);
  const Check device = CheckDevice(environment_);
  EXPECT_EQ(device.result, Check::kOk) << device.detail;
  EXPECT_EQ(device.detail, "cpu, avx2");
  WriteProgram("ebb-worker",
               "echo '{\"backend\": {\"kind\": \"cpu\", \"bf16_products\": "
               "false}}'");
  EXPECT_EQ(CheckDevice(environment_).detail,
            "cpu, multiplies bf16 as fp32 (no instructions for it)");
  WriteProgram("ebb-worker",
               "echo '{\"backend\": {\"kind\": \"cpu\", \"bf16_products\": "
               "true}}'");
  EXPECT_EQ(CheckDevice(environment_).detail, "cpu, multiplies bf16 as it is");
}

TEST_F(Checks, WorkerThatFailsOrTalksNonsense) {
  WriteProgram("ebb-worker", "exit 3");
  EXPECT_THAT(CheckDevice(environment_).detail, HasSubstr("exit code 3"));
  WriteProgram("ebb-worker", "echo hello");
  EXPECT_EQ(CheckDevice(environment_).result, Check::kFail);
  WriteProgram("ebb-worker", "kill -9 $$");
  EXPECT_THAT(CheckDevice(environment_).detail, HasSubstr("signal 9"));
}

TEST_F(Checks, MemoryAndDisk) {
  EXPECT_EQ(CheckMemory(int64_t{8} << 30).result, Check::kOk);
  EXPECT_EQ(CheckMemory(1 << 20).result, Check::kWarn);
  EXPECT_GT(AvailableMemoryBytes(), 1 << 20);
  EXPECT_THAT(CheckDisk(environment_).detail, HasSubstr("free at "));
}

}  // namespace
}  // namespace ebb
