// A job goes on under other plans: at the right step, with the right memory,
// and without changing a bit; what happens when memory cannot be had.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "worker/program/cost_profile.h"
#include "worker/runtime/prepared_plan.h"
#include "worker/runtime/testing/capped_device.h"
#include "worker/runtime/testing/heap_device.h"
#include "worker/runtime/testing/test_job.h"
#include "worker/runtime/trainer.h"

namespace ebb {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

// Small and quick, with all that a plan could disturb: dropout, microbatches,
// evaluation on the same arena.
JobSpec Job(int64_t steps) {
  JobSpec spec = SmallJob();
  spec.model.layers = 5;
  spec.model.hidden = 32;
  spec.model.ffn = 64;
  spec.model.heads = spec.model.kv_heads = 2;
  spec.model.seq_len = 16;
  spec.model.dropout = 0.1;
  spec.model.attention = AttentionKind::kUnfused;
  spec.global_batch = 4;
  spec.eval.every = 7;
  spec.eval.seq_len = 16;
  spec.steps = steps;
  return spec;
}

constexpr int64_t kValidationSequences = 3;

JobSpec WithPolicy(JobSpec spec, Policy policy, int group = 1) {
  spec.memory.policy = policy;
  spec.memory.group = group;
  if (policy == Policy::kCustom) spec.memory.recompute = {"gelu", "L2.qkv.*"};
  return spec;
}

std::vector<JobSpec> AllPolicies(const JobSpec& spec) {
  return {
      WithPolicy(spec, Policy::kNone),     WithPolicy(spec, Policy::kCheap),
      WithPolicy(spec, Policy::kFull),     WithPolicy(spec, Policy::kFull, 2),
      WithPolicy(spec, Policy::kSqrt),     WithPolicy(spec, Policy::kCustom),
      WithPolicy(spec, Policy::kSelective)};
}

Plan PlanOf(const JobSpec& spec) {
  return PlanTestJob(spec, MakeTestDevice(spec)->backend()).plan;
}

PlanSwitch Order(int64_t number, const JobSpec& spec, int64_t at_step = 0) {
  PlanSwitch order;
  order.number = number;
  order.plan = PlanOf(spec);
  order.at_step = at_step;
  order.offload_directory = "/tmp";
  return order;
}

JobRun RunSwitching(const JobSpec& spec,
                    std::vector<std::pair<int64_t, PlanSwitch>> switches = {}) {
  return RunJob(spec, {.validation_sequences = kValidationSequences,
                       .switches = std::move(switches)});
}

// Contract 1: 20 live switches at random steps between all policies, in poison
// mode. Named steps are met exactly; memory is the new plan's from there on.
TEST(PlanSwitch, TwentyAtRandomStepsChangeNoBit) {
  for (const DType precision : {DType::kF32, DType::kBf16}) {
    JobSpec spec = Job(60);
    spec.precision = precision;
    const std::vector<JobSpec> policies = AllPolicies(spec);
    const uint32_t seed = 20261129;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::minstd_rand random(seed);
    std::vector<int64_t> steps;
    for (int64_t step = 2; step <= spec.steps; ++step) steps.push_back(step);
    std::shuffle(steps.begin(), steps.end(), random);
    steps.resize(20);
    std::sort(steps.begin(), steps.end());

    std::vector<std::pair<int64_t, PlanSwitch>> switches;
    std::map<int64_t, const JobSpec*> from;  // step -> policy from there on
    from[1] = &policies[0];
    size_t last = 0;
    for (size_t n = 0; n < steps.size(); ++n) {
      // Each of them at least twice, never one and the same again.
      size_t next = n < 2 * policies.size() ? (3 * n + 1) % policies.size()
                                            : random() % policies.size();
      if (next == last) next = (next + 1) % policies.size();
      last = next;
      from[steps[n]] = &policies[next];
      switches.push_back({steps[n] - 1, Order(static_cast<int64_t>(n) + 1,
                                              policies[next], steps[n])});
    }
    const JobRun run = RunSwitching(policies[0], switches);
    ExpectSameBits(run, RunSwitching(policies[0]));

    ASSERT_THAT(run.changes, SizeIs(20));
    for (size_t n = 0; n < 20; ++n) {
      EXPECT_TRUE(run.changes[n].status.ok()) << run.changes[n].status;
      EXPECT_EQ(run.changes[n].step, steps[n]);
      EXPECT_EQ(run.changes[n].number, n + 1);
      EXPECT_THAT(run.changes[n].differences, IsEmpty());
    }
    int num_policies = 0;
    for (const StepReport& report : run.steps) {
      const JobSpec& of_step =
          *std::prev(from.upper_bound(report.step))->second;
      const Plan plan = PlanOf(of_step);
      SCOPED_TRACE(absl::StrCat("step ", report.step));
      EXPECT_EQ(run.policies[report.step - 1], of_step.memory.policy);
      EXPECT_EQ(report.memory, plan.ranks[0].memory);
      EXPECT_EQ(report.saved_bytes, plan.ranks[0].saved_bytes);
      num_policies +=
          report.step > 1 && report.memory != run.steps[report.step - 2].memory;
    }
    EXPECT_GE(num_policies, 10) << "the plans must differ";
  }
}

// The nearest boundary is where the plan is ready: some step soon, the same
// bits.
TEST(PlanSwitch, WithoutANamedStepItComesWhenItIsPrepared) {
  const JobSpec spec = Job(80);
  std::vector<std::pair<int64_t, PlanSwitch>> switches;
  const std::vector<JobSpec> policies = AllPolicies(spec);
  for (int64_t n = 1; n <= 6; ++n) {
    switches.push_back({10 * n, Order(n, policies[n])});
  }
  const JobRun run = RunSwitching(spec, switches);
  ExpectSameBits(run, RunSwitching(spec));
  ASSERT_FALSE(run.changes.empty());
  int64_t last = 0;
  for (const PlanChange& change : run.changes) {
    EXPECT_TRUE(change.status.ok()) << change.status;
    EXPECT_GT(change.step, 10 * change.number);
    EXPECT_GT(change.number, last);
    last = change.number;
  }
}

TEST(PlanSwitch, BeforeTheFirstStepAndAfterTheLast) {
  const JobSpec spec = Job(3);
  const JobRun run =
      RunSwitching(spec, {{0, Order(1, WithPolicy(spec, Policy::kFull), 1)},
                          {3, Order(2, WithPolicy(spec, Policy::kCheap))}});
  ExpectSameBits(run, RunSwitching(spec));
  ASSERT_THAT(run.changes, SizeIs(1));
  EXPECT_EQ(run.changes[0].step, 1);
  EXPECT_EQ(run.policies[0], Policy::kFull);
}

TEST(PlanSwitch, ArenaStaysWhereItNeedNotGrow) {
  const JobSpec spec = Job(6);
  const JobSpec full = WithPolicy(spec, Policy::kFull);
  const JobRun run =
      RunSwitching(spec, {{1, Order(1, full, 2)}, {3, Order(2, spec, 4)}});
  ASSERT_THAT(run.changes, SizeIs(2));
  EXPECT_FALSE(run.changes[0].step_arena_moved);
  EXPECT_EQ(run.changes[0].step_arena_bytes,
            PlanOf(full).ranks[0].step_arena_bytes)
      << "what it does not need goes back";
  EXPECT_EQ(run.changes[1].step_arena_bytes,
            PlanOf(spec).ranks[0].step_arena_bytes);
}

// Host memory comes and goes with the plan, too.
TEST(PlanSwitch, BetweenOffloadAndNone) {
  const JobSpec spec = Job(9);
  JobSpec offload = spec;
  offload.memory.offload = Offload::kHost;
  JobSpec both = WithPolicy(offload, Policy::kCheap);
  const JobRun run = RunSwitching(spec, {{1, Order(1, offload, 2)},
                                         {3, Order(2, both, 4)},
                                         {5, Order(3, spec, 6)},
                                         {6, Order(4, offload, 7)}});
  ExpectSameBits(run, RunSwitching(spec));
  ASSERT_THAT(run.changes, SizeIs(4));
  for (const PlanChange& change : run.changes) {
    EXPECT_TRUE(change.status.ok()) << change.status;
    EXPECT_THAT(change.differences, IsEmpty());
  }
  EXPECT_EQ(run.steps[0].host_bytes, 0);
  EXPECT_EQ(run.steps[1].host_bytes, PlanOf(offload).ranks[0].host_bytes);
  EXPECT_GT(run.steps[1].host_bytes, run.steps[3].host_bytes);
  EXPECT_EQ(run.steps[5].host_bytes, 0);
  EXPECT_EQ(run.steps[8].memory, PlanOf(offload).ranks[0].memory);
}

// So does the file of values that wait on disk.
TEST(PlanSwitch, BetweenDiskHostAndNone) {
  const JobSpec spec = Job(12);
  JobSpec host = spec;
  host.memory.offload = Offload::kHost;
  JobSpec disk = spec;
  disk.memory.offload = Offload::kDisk;
  const JobSpec less = WithPolicy(disk, Policy::kFull);
  const JobRun run = RunSwitching(spec, {{1, Order(1, less, 2)},
                                         {3, Order(2, disk, 4)},
                                         {5, Order(3, host, 6)},
                                         {7, Order(4, disk, 8)},
                                         {8, Order(5, less, 9)},
                                         {10, Order(6, spec, 11)}});
  ExpectSameBits(run, RunSwitching(spec));
  ASSERT_THAT(run.changes, SizeIs(6));
  for (const PlanChange& change : run.changes) {
    EXPECT_TRUE(change.status.ok()) << change.status;
    EXPECT_THAT(change.differences, IsEmpty());
  }
  const auto disk_bytes = [](const JobSpec& of) {
    return PlanOf(of).ranks[0].disk_bytes;
  };
  EXPECT_GT(disk_bytes(disk), disk_bytes(less));
  EXPECT_GT(disk_bytes(less), 0);
  EXPECT_EQ(run.steps[0].disk_bytes, 0);
  EXPECT_EQ(run.steps[1].disk_bytes, disk_bytes(less));
  EXPECT_EQ(run.steps[3].disk_bytes, disk_bytes(disk));
  EXPECT_EQ(run.steps[5].disk_bytes, 0);
  EXPECT_GT(run.steps[5].host_bytes, 0);
  EXPECT_EQ(run.steps[7].disk_bytes, disk_bytes(disk));
  EXPECT_EQ(run.steps[7].host_bytes, 0);
  EXPECT_EQ(run.steps[8].disk_bytes, disk_bytes(less));
  EXPECT_EQ(run.steps[10].disk_bytes, 0);
}

TEST(PlanSwitch, SaysWhatIsNoPlanOfThisJob) {
  const JobSpec spec = Job(4);
  JobSpec other = spec;
  other.model.ffn = 48;
  PlanSwitch unreadable = Order(2, spec, 3);
  unreadable.plan = absl::InvalidArgumentError("unknown policy: best");
  const JobRun run =
      RunSwitching(spec, {{0, Order(1, other, 2)}, {1, unreadable}});
  ExpectSameBits(run, RunSwitching(spec));
  ASSERT_THAT(run.changes, SizeIs(2));
  EXPECT_EQ(run.changes[0].status.code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(run.changes[1].status.code(), absl::StatusCode::kInvalidArgument);
  for (const Policy policy : run.policies) EXPECT_EQ(policy, Policy::kNone);
}

// --- Memory that cannot be had ---

// A machine with so many bytes, of which Allocate really takes.
TrainerSetup SetupWith(const JobSpec& spec, HeapDevice** device,
                       int64_t bytes) {
  TrainerSetup setup =
      MakeSetup(spec, {.validation_sequences = kValidationSequences});
  auto limited = std::make_unique<HeapDevice>(CpuKernelTable(), bytes,
                                              setup.device->backend());
  *device = limited.get();
  setup.device = std::move(limited);
  const Backend& backend = (*device)->backend();
  setup.plan = PlanTestJob(spec, backend).plan;
  for (const Policy policy : {Policy::kCheap, Policy::kFull}) {
    setup.ladder.push_back(PlanTestJob(WithPolicy(spec, policy), backend).plan);
  }
  return setup;
}

JobRun RunWith(TrainerSetup setup,
               std::vector<std::pair<int64_t, PlanSwitch>> switches = {},
               std::function<void(int64_t step)> after_step = {}) {
  class Observer : public RecordingObserver {
   public:
    void OnStep(const StepReport& report) override {
      RecordingObserver::OnStep(report);
      if (after_step) after_step(report.step);
    }
    std::function<void(int64_t)> after_step;
  };
  Observer observer;
  observer.switches = std::move(switches);
  observer.policy = setup.plan.policy;
  observer.after_step = std::move(after_step);
  auto trainer = Trainer::Create(std::move(setup));
  if (trainer.ok()) {
    observer.run.finish = (*trainer)->Run(observer);
  } else {
    observer.run.finish.status = trainer.status();
  }
  return observer.run;
}

int64_t Need(const Plan& plan) {
  return plan.ranks[0].state_arena_bytes + plan.ranks[0].step_arena_bytes +
         plan.backend.runtime_bytes;
}

TEST(PlanLadder, TheFirstThatFitsTrains) {
  const JobSpec spec = Job(9);
  HeapDevice* device = nullptr;
  const JobRun whole = RunWith(SetupWith(spec, &device, int64_t{1} << 40));
  ASSERT_TRUE(whole.finish.status.ok()) << whole.finish.status;
  EXPECT_THAT(whole.changes, IsEmpty());
  for (int rung = 1; rung <= 2; ++rung) {
    TrainerSetup setup = SetupWith(spec, &device, 0);
    const Plan wanted = setup.ladder[rung - 1];
    device->set_available_bytes(Need(wanted));
    const JobRun run = RunWith(std::move(setup));
    ExpectSameBits(run, whole);
    ASSERT_THAT(run.changes, SizeIs(1));
    EXPECT_EQ(run.changes[0].rung, rung);
    EXPECT_EQ(run.changes[0].number, 0);
    EXPECT_EQ(run.changes[0].step, 1);
    EXPECT_EQ(run.changes[0].status.code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(Message(run.changes[0].status), HasSubstr("does not fit"));
    EXPECT_EQ(run.step_bytes, wanted.ranks[0].step_arena_bytes);
    EXPECT_THAT(run.differences, IsEmpty());
    for (const Policy policy : run.policies) EXPECT_EQ(policy, wanted.policy);
  }
}

TEST(PlanLadder, NoneFits) {
  HeapDevice* device = nullptr;
  TrainerSetup setup = SetupWith(Job(3), &device, 0);
  const int64_t need = Need(setup.ladder[1]);
  device->set_available_bytes(need - 1);
  const JobRun run = RunWith(std::move(setup));
  EXPECT_EQ(run.finish.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(run.finish.status),
              HasSubstr(absl::StrCat("need ", need)));
  EXPECT_THAT(Message(run.finish.status),
              HasSubstr("the smallest of 3 plans, full"));
}

TEST(PlanLadder, ASwitchThatFindsNoMemoryLeavesTheOldPlan) {
  const JobSpec spec = Job(6);
  const JobSpec full = WithPolicy(spec, Policy::kFull);
  HeapDevice* device = nullptr;
  TrainerSetup setup = SetupWith(full, &device, int64_t{1} << 40);
  setup.ladder.clear();
  const int64_t old_bytes = setup.plan.ranks[0].step_arena_bytes;
  PlanSwitch order;
  order.number = 5;
  order.at_step = 3;
  order.plan = PlanTestJob(spec, device->backend()).plan;
  // From the second step on there is room for the old arena alone.
  const JobRun run = RunWith(std::move(setup), {{1, order}}, [&](int64_t step) {
    if (step == 2) device->set_available_bytes(old_bytes);
  });
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  ASSERT_THAT(run.changes, SizeIs(1));
  EXPECT_EQ(run.changes[0].number, 5);
  EXPECT_EQ(run.changes[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(run.changes[0].status),
              HasSubstr(absl::StrCat("have ", old_bytes)));
  EXPECT_EQ(run.changes[0].rung, 0);
  EXPECT_EQ(run.changes[0].step_arena_bytes, old_bytes);
  for (const Policy policy : run.policies) EXPECT_EQ(policy, Policy::kFull);
  ExpectSameBits(run, RunWith(SetupWith(full, &device, int64_t{1} << 40)));
}

TEST(PlanLadder, ASwitchThatFindsNoDiskLeavesTheOldPlan) {
  // Files over this size are refused like those of a full disk.
  class FileSizeLimit {
   public:
    explicit FileSizeLimit(rlim_t bytes) {
      std::signal(SIGXFSZ, SIG_IGN);
      getrlimit(RLIMIT_FSIZE, &before_);
      const rlimit limit = {bytes, before_.rlim_max};
      EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

   private:
    rlimit before_ = {};
  };
  const JobSpec spec = Job(6);
  JobSpec disk = spec;
  disk.memory.offload = Offload::kDisk;
  const JobSpec less = WithPolicy(disk, Policy::kFull);
  const int64_t bytes = PlanOf(less).ranks[0].disk_bytes;
  ASSERT_GT(PlanOf(disk).ranks[0].disk_bytes, bytes);
  const FileSizeLimit limit(static_cast<rlim_t>(bytes));
  const JobRun run =
      RunSwitching(less, {{1, Order(1, disk, 2)}, {3, Order(2, spec, 4)}});
  ExpectSameBits(run, RunSwitching(spec));
  ASSERT_THAT(run.changes, SizeIs(2));
  EXPECT_EQ(run.changes[0].status.code(), absl::StatusCode::kResourceExhausted)
      << run.changes[0].status;
  EXPECT_THAT(Message(run.changes[0].status),
              HasSubstr("offload directory /tmp: no room"));
  EXPECT_FALSE(run.changes[0].step_arena_moved);
  EXPECT_EQ(run.steps[2].disk_bytes, bytes);
  EXPECT_EQ(run.steps[3].disk_bytes, 0);
}

TEST(PlanLadder, ASwitchThatFindsTheOldArenaGoneClimbsDown) {
  const JobSpec spec = Job(6);
  const JobSpec cheap = WithPolicy(spec, Policy::kCheap);
  HeapDevice* device = nullptr;
  TrainerSetup setup = SetupWith(cheap, &device, int64_t{1} << 40);
  setup.ladder.erase(setup.ladder.begin());  // full is left
  const int64_t least = setup.ladder[0].ranks[0].step_arena_bytes;
  PlanSwitch order;
  order.number = 5;
  order.at_step = 3;
  order.plan = PlanTestJob(spec, device->backend()).plan;
  const auto shrink = [&](int64_t bytes) {
    return [&device, bytes](int64_t step) {
      if (step == 2) device->set_available_bytes(bytes);
    };
  };
  const JobRun run = RunWith(std::move(setup), {{1, order}}, shrink(least));
  ASSERT_THAT(run.changes, SizeIs(1));
  EXPECT_FALSE(run.changes[0].status.ok());
  EXPECT_EQ(run.changes[0].rung, 1);
  EXPECT_THAT(run.policies,
              ElementsAre(Policy::kCheap, Policy::kCheap, Policy::kFull,
                          Policy::kFull, Policy::kFull, Policy::kFull));
  ExpectSameBits(run, RunWith(SetupWith(cheap, &device, int64_t{1} << 40)));

  // Not even that: the job ends, and says what it was short of.
  setup = SetupWith(cheap, &device, int64_t{1} << 40);
  setup.ladder.erase(setup.ladder.begin());
  order.plan = PlanTestJob(spec, device->backend()).plan;
  const JobRun none =
      RunWith(std::move(setup), {{1, order}}, shrink(least - 1));
  EXPECT_EQ(none.finish.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(none.finish.last_step, 2);
  EXPECT_NE(none.finish.weights_hash, 0u);
}

// The same on a machine that takes what it gives back out of reach.
TrainerSetup CappedSetup(const JobSpec& spec, CappedDevice** device,
                         int64_t capacity_bytes) {
  TrainerSetup setup =
      MakeSetup(spec, {.validation_sequences = kValidationSequences});
  auto capped =
      std::make_unique<CappedDevice>(std::move(setup.device), capacity_bytes);
  *device = capped.get();
  setup.plan = PlanTestJob(spec, capped->backend()).plan;
  setup.device = std::move(capped);
  return setup;
}

PlanSwitch CappedOrder(const JobSpec& spec, const CappedDevice& device,
                       const std::string& offload_directory = "/tmp") {
  PlanSwitch order = Order(1, spec, 3);
  order.plan = PlanTestJob(spec, device.backend()).plan;
  order.offload_directory = offload_directory;
  return order;
}

constexpr int64_t kAllMemory = int64_t{1} << 40;

// The weights that the job ended with are still told of: masters that wait on
// disk are read although no arena is left to bring them to.
TEST(PlanLadder, ASwitchThatLeavesNoArenaEndsTheJobInWords) {
  for (const Offload optimizer : {Offload::kNone, Offload::kDisk}) {
    JobSpec spec = Job(6);
    spec.precision = DType::kBf16;
    spec.memory.offload_optimizer = optimizer;
    const JobSpec full = WithPolicy(spec, Policy::kFull);
    const JobRun two_steps =
        RunJob(full, {.validation_sequences = kValidationSequences,
                      .orders = {{2, TrainerOrder::kCancel}}});
    for (const bool has_ladder : {false, true}) {
      CappedDevice* device = nullptr;
      TrainerSetup setup = CappedSetup(full, &device, kAllMemory);
      if (has_ladder) setup.ladder = {setup.plan};
      const JobRun run =
          RunWith(std::move(setup), {{1, CappedOrder(spec, *device)}},
                  [&](int64_t step) {
                    if (step == 2) device->set_capacity_bytes(0);
                  });
      EXPECT_EQ(run.finish.status.code(), absl::StatusCode::kResourceExhausted)
          << run.finish.status;
      EXPECT_THAT(Message(run.finish.status),
                  HasSubstr("the step arena does not fit: need "));
      EXPECT_EQ(Message(run.finish.status).find("the smallest of 2 plans") !=
                    std::string::npos,
                has_ladder);
      EXPECT_EQ(run.finish.last_step, 2);
      EXPECT_EQ(run.finish.weights_hash, two_steps.finish.weights_hash);
    }
  }
}

// A directory of its own, with two below.
class TwoDirectories {
 public:
  TwoDirectories()
      : path_(absl::StrCat(testing::TempDir(), "/plan_switch_test-", getpid())),
        first_(path_ + "/first"),
        second_(path_ + "/second") {
    std::filesystem::create_directories(first_);
    std::filesystem::create_directories(second_);
  }
  ~TwoDirectories() { std::filesystem::remove_all(path_); }

  const std::string& first() const { return first_; }
  const std::string& second() const { return second_; }

 private:
  const std::string path_, first_, second_;
};

TEST(PlanLadder, ARefusedSwitchToAnotherDirectoryDoesNotNeedTheFirst) {
  const TwoDirectories directories;
  JobSpec spec = Job(6);
  spec.memory.offload = Offload::kDisk;
  const JobSpec full = WithPolicy(spec, Policy::kFull);
  CappedDevice* device = nullptr;
  TrainerSetup setup = CappedSetup(full, &device, kAllMemory);
  setup.offload_directory = directories.first();
  const JobRun run = RunWith(
      std::move(setup), {{1, CappedOrder(spec, *device, directories.second())}},
      [&](int64_t step) {
        if (step != 2) return;
        std::filesystem::remove_all(directories.first());
        device->set_capacity_bytes(device->allocated_bytes());
      });
  ExpectSameBits(run, RunSwitching(full));
  ASSERT_THAT(run.changes, SizeIs(1));
  EXPECT_EQ(run.changes[0].status.code(), absl::StatusCode::kResourceExhausted)
      << run.changes[0].status;
  EXPECT_EQ(run.changes[0].rung, 0);
  EXPECT_THAT(run.policies, Each(Policy::kFull));
  EXPECT_EQ(run.steps[5].disk_bytes, PlanOf(full).ranks[0].disk_bytes);
}

TEST(PlanLadder, ARungWithoutItsDiskIsLeftOut) {
  const JobSpec spec = Job(3);
  JobSpec disk = spec;
  disk.memory.offload = Offload::kDisk;
  const JobSpec full = WithPolicy(spec, Policy::kFull);
  CappedDevice* device = nullptr;
  TrainerSetup setup = CappedSetup(spec, &device, 0);
  for (const JobSpec& rung : {disk, full}) {
    setup.ladder.push_back(PlanTestJob(rung, device->backend()).plan);
  }
  const int64_t capacity =
      std::max(Need(setup.ladder[0]), Need(setup.ladder[1]));
  ASSERT_LT(capacity, Need(setup.plan));
  device->set_capacity_bytes(capacity);
  setup.offload_directory = "/no/such";
  const JobRun run = RunWith(std::move(setup));
  ExpectSameBits(run, RunSwitching(spec));
  ASSERT_THAT(run.changes, SizeIs(1));
  EXPECT_EQ(run.changes[0].rung, 2);
}

// Between plans of which each has less than the other of one arena, on a
// machine with room for either but not for the larger of both.
TEST(PlanLadder, ASwitchFitsWhereThePlanFitsByItself) {
  const JobSpec none = Job(6);
  JobSpec offload = none;
  offload.memory.offload = Offload::kHost;
  const auto need = [](const JobSpec& spec) {
    const RankPlan plan = PlanOf(spec).ranks[0];
    return plan.state_arena_bytes + plan.step_arena_bytes + plan.host_bytes;
  };
  const int64_t capacity = std::max(need(none), need(offload));
  ASSERT_LT(capacity, need(none) + PlanOf(offload).ranks[0].host_bytes);
  for (const bool grows : {false, true}) {
    const JobSpec& first = grows ? offload : none;
    const JobSpec& second = grows ? none : offload;
    CappedDevice* device = nullptr;
    TrainerSetup setup = CappedSetup(first, &device, capacity);
    const JobRun run =
        RunWith(std::move(setup), {{1, CappedOrder(second, *device)}});
    ExpectSameBits(run, RunSwitching(none));
    ASSERT_THAT(run.changes, SizeIs(1));
    EXPECT_TRUE(run.changes[0].status.ok()) << run.changes[0].status;
    EXPECT_EQ(run.changes[0].step_arena_bytes,
              PlanOf(second).ranks[0].step_arena_bytes);
    EXPECT_EQ(run.steps[2].host_bytes, PlanOf(second).ranks[0].host_bytes);
    if (!grows) {
      EXPECT_FALSE(run.changes[0].step_arena_moved);
    }
  }
}

// What a refused switch gave back is taken again.
TEST(PlanLadder, ARefusedSwitchTakesBackWhatItGaveBack) {
  const JobSpec none = Job(6);
  JobSpec offload = none;
  offload.memory.offload = Offload::kHost;
  for (const bool grows : {false, true}) {
    const JobSpec first =
        WithPolicy(grows ? offload : none, Policy::kSelective);
    const JobSpec& second = grows ? none : offload;
    CappedDevice* device = nullptr;
    TrainerSetup setup = CappedSetup(first, &device, kAllMemory);
    const RankPlan plan = PlanOf(second).ranks[0];
    const int64_t second_bytes =
        plan.state_arena_bytes + plan.step_arena_bytes + plan.host_bytes;
    int64_t first_bytes = 0;
    const JobRun run =
        RunWith(std::move(setup), {{1, CappedOrder(second, *device)}},
                [&](int64_t step) {
                  if (step != 2) return;
                  first_bytes = device->allocated_bytes();
                  device->set_capacity_bytes(second_bytes - 1);
                });
    ASSERT_LT(first_bytes, second_bytes);
    ExpectSameBits(run, RunSwitching(none));
    ASSERT_THAT(run.changes, SizeIs(1));
    EXPECT_EQ(run.changes[0].status.code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(run.changes[0].rung, 0);
    EXPECT_EQ(run.steps[5].host_bytes, run.steps[0].host_bytes);
    EXPECT_EQ(run.steps[5].memory, run.steps[0].memory);
    EXPECT_EQ(run.changes[0].step_arena_bytes,
              PlanOf(first).ranks[0].step_arena_bytes);
  }
}

// --- What copies took ---

TEST(PlanSwitch, CopiesOfTheFirstStepsAreToTheDiskInForce) {
  const TwoDirectories directories;
  JobSpec spec = Job(6);
  spec.memory.offload = Offload::kDisk;
  const std::string by_default = CopyKey(DiskPlace(""));
  const std::string in_second = CopyKey(DiskPlace(directories.second()));
  const auto run = [&](const JobSpec& job, std::vector<PlanSwitch> orders) {
    std::vector<std::pair<int64_t, PlanSwitch>> switches;
    for (PlanSwitch& order : orders) switches.push_back({0, std::move(order)});
    return RunSwitching(job, std::move(switches)).op_seconds;
  };
  PlanSwitch order = Order(1, spec, 2);
  order.offload_directory = directories.second();
  EXPECT_EQ(run(spec, {}).count(by_default), 1u);
  EXPECT_EQ(run(spec, {order}).count(by_default), 0u);
  EXPECT_EQ(run(spec, {order}).count(in_second), 1u);
  // The optimizer's state stays where it is: of two disks nothing is known.
  spec.memory.offload_optimizer = Offload::kDisk;
  order.plan = PlanOf(spec);
  EXPECT_EQ(run(spec, {}).count(by_default), 1u);
  EXPECT_EQ(run(spec, {order}).count(by_default), 0u);
  EXPECT_EQ(run(spec, {order}).count(in_second), 0u);
}

TEST(PlanSwitch, CopiesThatAreCheckedOrDelayedAreNotTimed) {
  for (const Offload place : {Offload::kHost, Offload::kDisk}) {
    JobSpec spec = Job(4);
    spec.memory.offload = place;
    const std::string key =
        CopyKey(place == Offload::kHost ? kHostPlace : DiskPlace(""));
    const auto times = [&](const OffloadOptions& offload) {
      return RunJob(spec, {.validation_sequences = kValidationSequences,
                           .offload = offload})
          .op_seconds;
    };
    EXPECT_EQ(times({}).count(key), 1u);
    const auto checked = times({.check = true});
    EXPECT_FALSE(checked.empty());
    EXPECT_EQ(checked.count(key), 0u);
    EXPECT_EQ(times({.longest_delay_microseconds = 10}).count(key), 0u);
  }
}

// --- The queue ---

absl::StatusOr<std::unique_ptr<PreparedPlan>> PrepareNothing(const Plan&) {
  return std::make_unique<PreparedPlan>();
}

PlanSwitch Numbered(int64_t number, int64_t at_step) {
  PlanSwitch order;
  order.number = number;
  order.at_step = at_step;
  order.plan = Plan();
  return order;
}

TEST(SwitchQueue, TheNewestThatIsDueCounts) {
  SwitchQueue queue(PrepareNothing);
  EXPECT_FALSE(queue.TakeDue(1).has_value());
  queue.Add(Numbered(1, 2));
  queue.Add(Numbered(2, 2));
  queue.Add(Numbered(3, 9));
  queue.Add(Numbered(4, 4));
  EXPECT_FALSE(queue.TakeDue(1).has_value());
  EXPECT_EQ(queue.TakeDue(2)->order.number, 2);
  EXPECT_FALSE(queue.TakeDue(3).has_value());
  EXPECT_EQ(queue.TakeDue(4)->order.number, 4) << "and 3 is forgotten";
  EXPECT_FALSE(queue.TakeDue(9).has_value());
}

TEST(SwitchQueue, KnownNumbersChangeNothing) {
  SwitchQueue queue(PrepareNothing);
  queue.Add(Numbered(2, 2));
  queue.Add(Numbered(2, 2));
  queue.Add(Numbered(1, 3));
  EXPECT_EQ(queue.TakeDue(2)->order.number, 2);
  queue.Add(Numbered(2, 3));
  EXPECT_FALSE(queue.TakeDue(3).has_value());
}

TEST(SwitchQueue, StepsGoOnWhileItPreparesUnlessTheStepIsNamed) {
  absl::Notification go;
  int calls = 0;
  SwitchQueue queue([&](const Plan&) {
    go.WaitForNotification();
    ++calls;
    return PrepareNothing({});
  });
  queue.Add(Numbered(1, 0));
  EXPECT_FALSE(queue.TakeDue(1).has_value());
  queue.Add(Numbered(2, 2));
  go.Notify();
  EXPECT_EQ(queue.TakeDue(2)->order.number, 2);
  EXPECT_EQ(calls, 2);
}

TEST(SwitchQueue, EndsWhileItPrepares) {
  absl::Notification begun;
  SwitchQueue queue([&](const Plan&) {
    begun.Notify();
    return PrepareNothing({});
  });
  queue.Add(Numbered(1, 5));
  begun.WaitForNotification();
}

}  // namespace
}  // namespace ebb
