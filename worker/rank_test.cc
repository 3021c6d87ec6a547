// A rank that cannot train says why, to the coordinator and by its exit code.
// (Ranks that train: integration_tests.)
#include "worker/rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "proto/convert.h"
#include "proto/effective_spec.h"
#include "worker/runtime/disk_file.h"
#include "worker/signal_watch.h"
#include "worker/testing/fake_coordinator.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

class Rank : public ::testing::Test {
 protected:
  Rank() {
    std::string pattern = "/tmp/ebb_rank.XXXXXX";  // a socket's path is short
    directory_ = mkdtemp(pattern.data());
    environment_.job = "k3j2h1g0";
    environment_.attempt = 2;
    environment_.rank = 1;
    environment_.server = "unix:" + directory_ + "/socket";
    environment_.attempt_directory = directory_;
    coordinator_ = std::make_unique<FakeCoordinator>(environment_.server);
  }
  ~Rank() override {
    coordinator_->Stop();
    std::filesystem::remove_all(directory_);
  }

  // An assignment that is right but for the data, which is not there.
  v1::Assignment Assignment() const {
    v1::JobSpec spec;
    spec.mutable_model()->set_layers(1);
    spec.mutable_model()->set_hidden(8);
    spec.mutable_model()->set_heads(1);
    spec.mutable_model()->set_vocab(257);
    spec.mutable_model()->set_seq_len(8);
    spec.mutable_data()->set_train(directory_ + "/none.txt");
    spec.mutable_batch()->set_global(1);
    spec.mutable_batch()->set_micro(1);
    spec.set_steps(1);
    absl::StatusOr<v1::JobSpec> effective = EffectiveSpec(
        spec, {.threads = 1, .budget_bytes = 1 << 30, .host_budget_bytes = 1});
    EXPECT_TRUE(effective.ok()) << effective.status();
    Plan plan;
    plan.backend = DescribeCpu(1);
    plan.ranks.resize(2);
    plan.ranks[1].rank = 1;
    v1::Assignment assignment;
    *assignment.mutable_spec() = *effective;
    *assignment.mutable_plan() = PlanToMessage(plan);
    assignment.set_directory(directory_);
    return assignment;
  }

  // Runs the rank under an assignment and returns what it said at the end.
  v1::Finished FinishedUnder(const v1::Assignment& assignment) {
    coordinator_->SetAssignment(assignment);
    coordinator_->Start();
    EXPECT_EQ(RunRank(environment_, "1.2.3"), 1);
    coordinator_->Stop();
    if (coordinator_->stored_.size() != 1) return {};
    return coordinator_->stored_[0].finished();
  }

  std::string directory_;
  RankEnvironment environment_;
  std::unique_ptr<FakeCoordinator> coordinator_;
};

TEST_F(Rank, MissingDataIsReported) {
  v1::Finished finished = FinishedUnder(Assignment());
  EXPECT_EQ(finished.code(), static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_THAT(finished.message(), HasSubstr("none.txt"));
  EXPECT_EQ(finished.last_step(), 0);
}

TEST_F(Rank, PlanForAnotherMachineIsRefused) {
  v1::Assignment assignment = Assignment();
  assignment.mutable_plan()->mutable_backend()->set_threads(3);
  assignment.mutable_plan()->mutable_backend()->set_device_model("abacus");
  v1::Finished finished = FinishedUnder(assignment);
  EXPECT_EQ(finished.code(),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(finished.message(), HasSubstr("the plan is for abacus"));
  EXPECT_THAT(finished.message(), HasSubstr("threads is 1, the plan is for 3"));
}

TEST_F(Rank, SpecThatIsNotEffectiveIsRefused) {
  v1::Assignment assignment = Assignment();
  assignment.mutable_spec()->mutable_batch()->set_micro(2);
  EXPECT_EQ(FinishedUnder(assignment).code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
}

TEST_F(Rank, PlanWithoutThisRankIsRefused) {
  v1::Assignment assignment = Assignment();
  assignment.mutable_plan()->mutable_ranks()->RemoveLast();
  EXPECT_THAT(FinishedUnder(assignment).message(), HasSubstr("no rank 1"));
}

TEST_F(Rank, RefusedRankFails) {
  coordinator_->Refuse({grpc::StatusCode::FAILED_PRECONDITION, "old attempt"});
  coordinator_->Start();
  EXPECT_EQ(RunRank(environment_, "1.2.3"), 1);
  coordinator_->Stop();
  EXPECT_TRUE(coordinator_->stored_.empty());
}

TEST_F(Rank, TerminatedBeforeItsAssignmentItEndsWell) {
  coordinator_->SetMute(true);
  coordinator_->Start();
  BlockStopSignals();  // the signal may come before RunRank does so
  std::thread sender([&] {
    EXPECT_TRUE(coordinator_->Becomes(
        [&] { return !coordinator_->registrations_.empty(); }));
    kill(getpid(), SIGTERM);
  });
  EXPECT_EQ(RunRank(environment_, "1.2.3"), 0);
  sender.join();
}

// Its files: values on disk, checkpoints, what it reports meanwhile.
TEST_F(Rank, OutlivesAFileThatMayNotGrow) {
  const auto before = signal(SIGXFSZ, SIG_DFL);
  FinishedUnder(Assignment());
  rlimit limit = {};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small = {4096, limit.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = DiskFile::Create(directory_, 8192).status();
  setrlimit(RLIMIT_FSIZE, &limit);
  signal(SIGXFSZ, before);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST_F(Rank, EnvironmentIsReadWhole) {
  setenv("EBB_JOB", "k3j2h1g0", 1);
  setenv("EBB_ATTEMPT", "3", 1);
  setenv("EBB_RANK", "4", 1);
  setenv("EBB_SERVER", "unix:/s", 1);
  setenv("EBB_ATTEMPT_DIRECTORY", "/d", 1);
  setenv("EBB_POISON", "1", 1);
  absl::StatusOr<RankEnvironment> environment = RankEnvironment::Read();
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->job, "k3j2h1g0");
  EXPECT_EQ(environment->attempt, 3);
  EXPECT_EQ(environment->rank, 4);
  EXPECT_EQ(environment->server, "unix:/s");
  EXPECT_EQ(environment->attempt_directory, "/d");
  EXPECT_TRUE(environment->poison);

  for (const char* wrong : {"", "-1", "x", "1x", "99999999999"}) {
    setenv("EBB_RANK", wrong, 1);
    EXPECT_THAT(std::string(RankEnvironment::Read().status().message()),
                HasSubstr("EBB_RANK"))
        << wrong;
  }
  for (const char* name : {"EBB_JOB", "EBB_ATTEMPT", "EBB_RANK", "EBB_SERVER",
                           "EBB_ATTEMPT_DIRECTORY", "EBB_POISON"}) {
    unsetenv(name);
  }
  EXPECT_THAT(std::string(RankEnvironment::Read().status().message()),
              HasSubstr("EBB_JOB is not set"));
}

TEST_F(Rank, RuntimeBytesMayDiffer) {
  Backend planned = BuiltInCpuBackend();
  Backend found = planned;
  found.runtime_bytes += 1;
  EXPECT_EQ(BackendDifference(planned, found), "");
  found.instruction_set = "avx2";
  EXPECT_EQ(BackendDifference(planned, found),
            "instruction_set is avx2, the plan is for avx512_core");
}

}  // namespace
}  // namespace ebb
