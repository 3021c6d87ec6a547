// The real ebbd: one a state directory, closed to the world, gone when asked.
#include <dirent.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "integration_tests/harness.h"
#include "proto/job_service.grpc.pb.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class EbbdTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::path(::testing::TempDir() + ".")
                              .lexically_normal()
                              .string() +
                          "ebbdXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    outputs_ = pattern;
    state_ = outputs_ + "/state";
  }
  void TearDown() override { std::filesystem::remove_all(outputs_); }

  std::unique_ptr<Process> Start(const std::string& metrics = "127.0.0.1:0",
                                 const std::string& state = "") {
    return std::make_unique<Process>(
        std::vector<std::string>{EBB_BINARY_DIR "/ebbd", "--state",
                                 state.empty() ? state_ : state},
        std::vector<std::string>{"EBB_METRICS_ADDRESS=" + metrics},
        absl::StrCat(outputs_, "/output-", ++num_outputs_));
  }
  // Waits until the file is that of this process.
  nlohmann::json Serving(const Process& ebbd) {
    nlohmann::json info = nlohmann::json::object();
    EXPECT_TRUE(WaitUntil(
        [&] {
          info = nlohmann::json::parse(ReadAll(state_ + "/ebbd.json"), nullptr,
                                       false);
          return info.is_object() && info["pid"] == ebbd.pid();
        },
        20))
        << "no coordinator within 20 s";
    return info;
  }
  std::unique_ptr<v1::JobService::Stub> Stub() {
    return v1::JobService::NewStub(grpc::CreateChannel(
        "unix:" + state_ + "/ebbd.sock", grpc::InsecureChannelCredentials()));
  }

  std::string outputs_;
  std::string state_;
  int num_outputs_ = 0;
};

TEST_F(EbbdTest, ServesUntilItIsAskedToStop) {
  auto ebbd = Start();
  const nlohmann::json info = Serving(*ebbd);
  EXPECT_EQ(info["socket"], state_ + "/ebbd.sock");
  EXPECT_THAT(info["metrics_address"].get<std::string>(),
              HasSubstr("127.0.0.1:"));
  grpc::ClientContext context;
  v1::Server server;
  ASSERT_TRUE(Stub()->GetServer(&context, {}, &server).ok());
  EXPECT_EQ(server.version(), info["version"].get<std::string>());
  EXPECT_EQ(server.pid(), ebbd->pid());
  EXPECT_EQ(server.state_directory(), state_);
  ebbd->Signal(SIGTERM);
  EXPECT_EQ(ebbd->Wait(20).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(state_ + "/ebbd.json"));
  EXPECT_FALSE(std::filesystem::exists(state_ + "/ebbd.sock"));
}

TEST_F(EbbdTest, ASecondOneExitsAtOnceAndTakesNothing) {
  auto first = Start();
  Serving(*first);
  const CommandResult second = Start()->Wait(20);
  EXPECT_EQ(second.exit_code, 5);
  EXPECT_THAT(second.err, HasSubstr("another ebbd uses this state directory"));
  Serving(*first);
  grpc::ClientContext context;
  v1::Server server;
  EXPECT_TRUE(Stub()->GetServer(&context, {}, &server).ok());
  EXPECT_EQ(server.pid(), first->pid());
}

TEST_F(EbbdTest, StartsAgainAfterItWasKilled) {
  auto first = Start();
  Serving(*first);
  first->Signal(SIGKILL);
  first->Wait(20);
  auto second = Start();
  Serving(*second);
}

TEST_F(EbbdTest, EndsWhereItsStateDirectoryWasRemoved) {
  auto first = Start();
  Serving(*first);
  std::filesystem::remove_all(state_);
  auto second = Start();
  Serving(*second);
  EXPECT_EQ(first->Wait(20).exit_code, 5);
  // And took nothing of the other's with it.
  Serving(*second);
  grpc::ClientContext context;
  v1::Server server;
  EXPECT_TRUE(Stub()->GetServer(&context, {}, &server).ok());
  EXPECT_EQ(server.pid(), second->pid());
}

TEST_F(EbbdTest, AStreamThatFollowsDoesNotHoldUpTheStop) {
  auto ebbd = Start();
  Serving(*ebbd);
  // An idle connection, too.
  auto stub = Stub();
  grpc::ClientContext context;
  v1::Server server;
  ASSERT_TRUE(stub->GetServer(&context, {}, &server).ok());
  ebbd->Signal(SIGINT);
  EXPECT_EQ(ebbd->Wait(10).exit_code, 0);
}

TEST_F(EbbdTest, NothingListensBeyondLoopback) {
  auto ebbd = Start();
  Serving(*ebbd);
  // Sockets of the process, by inode.
  std::set<std::string> inodes;
  const std::string directory = absl::StrCat("/proc/", ebbd->pid(), "/fd");
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::error_code error;
    const std::string target =
        std::filesystem::read_symlink(entry.path(), error).string();
    if (absl::StartsWith(target, "socket:[")) {
      inodes.insert(target.substr(8, target.size() - 9));
    }
  }
  int listeners = 0;
  for (const char* table : {"tcp", "tcp6"}) {
    const std::string path =
        absl::StrCat("/proc/", ebbd->pid(), "/net/", table);
    for (absl::string_view line : absl::StrSplit(ReadAll(path), '\n')) {
      const std::vector<std::string> fields =
          absl::StrSplit(line, ' ', absl::SkipEmpty());
      constexpr size_t kLocal = 1;
      constexpr size_t kInode = 9;
      if (fields.size() <= kInode || inodes.count(fields[kInode]) == 0) {
        continue;
      }
      ++listeners;
      // 127.0.0.1, little endian.
      EXPECT_TRUE(absl::StartsWith(fields[kLocal], "0100007F:"))
          << fields[kLocal];
    }
  }
  EXPECT_EQ(listeners, 1) << "metrics alone";
  struct stat info;
  ASSERT_EQ(stat(state_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  for (const auto& entry : std::filesystem::directory_iterator(state_)) {
    ASSERT_EQ(lstat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 077, 0u) << entry.path();
  }
}

TEST_F(EbbdTest, MetricsAddressesAreTakenAtTheirWord) {
  auto first = Start();
  const std::string address = Serving(*first)["metrics_address"];
  const std::string other = outputs_ + "/other";
  const CommandResult busy = Start(address, other)->Wait(20);
  EXPECT_EQ(busy.exit_code, 6);
  EXPECT_THAT(busy.err, HasSubstr(address));
  const CommandResult open = Start("0.0.0.0:0", other)->Wait(20);
  EXPECT_EQ(open.exit_code, 5);
  EXPECT_THAT(open.err, HasSubstr("beyond loopback"));
  EXPECT_EQ(Start("nonsense", other)->Wait(20).exit_code, 2);
}

TEST_F(EbbdTest, MetricsCanBeOff) {
  auto ebbd = Start("off");
  EXPECT_EQ(Serving(*ebbd)["metrics_address"], "");
}

TEST_F(EbbdTest, ALongStateDirectorySaysWhatToSet) {
  const CommandResult result =
      Start("off", outputs_ + "/" + std::string(100, 'x'))->Wait(20);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("EBB_STATE"));
  EXPECT_THAT(result.err, HasSubstr("107"));
}

TEST_F(EbbdTest, PlansWithoutFilesAndRefusesJobsWithoutThem) {
  auto ebbd = Start();
  Serving(*ebbd);
  auto stub = Stub();
  v1::JobSpec spec;
  spec.mutable_model()->set_layers(2);
  spec.mutable_model()->set_hidden(16);
  spec.mutable_model()->set_heads(2);
  spec.mutable_model()->set_vocab(257);
  spec.mutable_model()->set_seq_len(16);
  spec.mutable_data()->set_train(outputs_ + "/$(touch x); no such `file`");
  spec.mutable_batch()->set_global(4);
  spec.mutable_batch()->set_micro(2);
  spec.set_steps(10);
  v1::PlanJobRequest plan;
  *plan.mutable_spec() = spec;
  plan.set_dump(true);
  v1::PlanJobResponse planned;
  grpc::ClientContext plan_context;
  const grpc::Status status = stub->PlanJob(&plan_context, plan, &planned);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(planned.plan().fits());
  EXPECT_GT(planned.plan().ranks(0).peak_bytes(), 0);
  EXPECT_THAT(planned.dump(), HasSubstr("block"));
  v1::CreateJobRequest create;
  *create.mutable_spec() = spec;
  v1::Job job;
  grpc::ClientContext create_context;
  const grpc::Status refused = stub->CreateJob(&create_context, create, &job);
  EXPECT_FALSE(refused.ok());
  grpc::ClientContext list_context;
  v1::ListJobsResponse listed;
  ASSERT_TRUE(stub->ListJobs(&list_context, {}, &listed).ok());
  EXPECT_EQ(listed.jobs_size(), 0);
}

}  // namespace
}  // namespace ebb
