// Tests of the training loop: orders, checkpoints, resume, evaluation,
// refusals.
#include "worker/runtime/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/status.h"
#include "worker/checkpoint/huggingface.h"
#include "worker/optimizer/schedule.h"
#include "worker/runtime/testing/heap_device.h"
#include "worker/runtime/testing/test_job.h"
#include "worker/runtime/testing/weights.h"

namespace ebb {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

// Fast: two layers, short sequences.
JobSpec TinyJob() {
  JobSpec spec = SmallJob();
  spec.model.layers = 2;
  spec.model.hidden = 16;
  spec.model.heads = spec.model.kv_heads = 2;
  spec.model.ffn = 32;
  spec.model.seq_len = 8;
  spec.model.dropout = 0.1;
  spec.eval.seq_len = 8;
  spec.global_batch = 4;
  return spec;
}

class TrainerTest : public ::testing::Test {
 protected:
  TestDirectory directory_;
};

TEST_F(TrainerTest, TrainsToTheLastStep) {
  const JobSpec spec = TinyJob();
  const JobRun run = RunJob(spec);
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  EXPECT_EQ(run.finish.last_step, 6);
  ASSERT_THAT(run.steps, SizeIs(6));
  for (int64_t n = 0; n < 6; ++n) {
    const StepReport& report = run.steps[n];
    EXPECT_EQ(report.step, n + 1);
    EXPECT_EQ(report.tokens, spec.global_batch * spec.model.seq_len);
    EXPECT_EQ(report.learning_rate, 1e-3);
    EXPECT_GT(report.resident_bytes, run.state_bytes + run.step_bytes);
    EXPECT_GT(report.gradient_norm, 0);
  }
}

TEST_F(TrainerTest, Learns) {
  JobSpec spec = TinyJob();
  spec.steps = 60;
  spec.optimizer.lr = 1e-2;
  const JobRun run = RunJob(spec);
  ASSERT_THAT(run.steps, SizeIs(60));
  // A uniform guess costs ln 257.
  EXPECT_NEAR(run.steps.front().loss, std::log(257), 0.1);
  EXPECT_LT(run.steps.back().loss, std::log(257) - 0.1);
}

TEST_F(TrainerTest, FollowsTheSchedule) {
  JobSpec spec = TinyJob();
  spec.lr_schedule = {.warmup = 3, .decay = LrDecay::kCosine, .min_lr = 1e-4};
  for (const StepReport& report : RunJob(spec).steps) {
    EXPECT_EQ(report.learning_rate,
              LearningRate(spec.optimizer, spec.lr_schedule, spec.steps,
                           report.step));
  }
}

TEST_F(TrainerTest, RepeatsBitForBit) {
  EXPECT_EQ(RunJob(TinyJob()).finish.weights_hash,
            RunJob(TinyJob()).finish.weights_hash);
  JobSpec other = TinyJob();
  other.seed = 5;
  EXPECT_NE(RunJob(TinyJob()).finish.weights_hash,
            RunJob(other).finish.weights_hash);
}

TEST_F(TrainerTest, ListsDecayGroupsInTheLog) {
  const JobRun run = RunJob(TinyJob());
  EXPECT_THAT(run.log, Contains(HasSubstr("L*.mlp.fc.weight")));
  EXPECT_THAT(run.log, Contains(HasSubstr("L*.mlp.fc.bias")));
}

TEST_F(TrainerTest, StopsAtAnOrder) {
  const JobRun run =
      RunJob(TinyJob(), {.orders = {{2, TrainerOrder::kCancel}}});
  EXPECT_EQ(run.finish.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(run.finish.last_step, 2);
  EXPECT_THAT(run.steps, SizeIs(2));
}

TEST_F(TrainerTest, FinishesWhenCancelledAfterTheLastStep) {
  const JobRun run =
      RunJob(TinyJob(), {.orders = {{6, TrainerOrder::kCancel}}});
  EXPECT_TRUE(run.finish.status.ok());
}

TEST_F(TrainerTest, SavesAtAnOrderAndChargesTheNextStep) {
  const JobRun run =
      RunJob(TinyJob(), {.checkpoint_directory = directory_.path(),
                         .orders = {{4, TrainerOrder::kCheckpoint}}});
  ASSERT_THAT(run.checkpoints, SizeIs(1));
  const CheckpointResult& saved = run.checkpoints[0];
  EXPECT_TRUE(saved.status.ok()) << saved.status;
  EXPECT_EQ(saved.step, 4);
  EXPECT_EQ(saved.directory, directory_.path() + "/step-4");
  EXPECT_GT(saved.bytes, run.state_bytes / 2);
  EXPECT_EQ(run.steps[3].phases.checkpoint, 0);
  EXPECT_EQ(run.steps[4].phases.checkpoint, saved.duration_seconds);
  EXPECT_GE(run.steps[4].duration_seconds, saved.duration_seconds);
  EXPECT_EQ(run.steps[5].phases.checkpoint, 0);
}

TEST_F(TrainerTest, KeepsTheNewestCheckpoints) {
  JobSpec spec = TinyJob();
  spec.checkpoint.every = 1;
  spec.checkpoint.keep = 2;
  const JobRun run = RunJob(spec, {.checkpoint_directory = directory_.path()});
  EXPECT_THAT(run.checkpoints, SizeIs(6));
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(directory_.path())) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  EXPECT_THAT(names, ElementsAre("step-5", "step-6"));
}

TEST_F(TrainerTest, GoesOnAfterAFailedSave) {
  JobSpec spec = TinyJob();
  spec.checkpoint.every = 3;
  const std::string file = directory_.path() + "/file";
  std::ofstream(file) << "in the way";
  const JobRun run = RunJob(spec, {.checkpoint_directory = file});
  EXPECT_TRUE(run.finish.status.ok()) << run.finish.status;
  ASSERT_THAT(run.checkpoints, SizeIs(2));
  EXPECT_FALSE(run.checkpoints[0].status.ok());
  EXPECT_EQ(run.checkpoints[0].directory, "");
}

TEST_F(TrainerTest, ContinuesFromACheckpointAsIfNeverStopped) {
  JobSpec spec = TinyJob();
  spec.checkpoint.every = 3;
  const JobRun whole =
      RunJob(spec, {.checkpoint_directory = directory_.path()});
  const JobRun rest =
      RunJob(spec, {.checkpoint_directory = directory_.path(),
                    .resume_from = directory_.path() + "/step-3"});
  ASSERT_TRUE(rest.finish.status.ok()) << rest.finish.status;
  ASSERT_THAT(rest.steps, SizeIs(3));
  for (int n = 0; n < 3; ++n) {
    EXPECT_EQ(rest.steps[n].step, n + 4);
    EXPECT_EQ(rest.steps[n].loss, whole.steps[n + 3].loss);
    EXPECT_EQ(rest.steps[n].gradient_norm, whole.steps[n + 3].gradient_norm);
  }
  EXPECT_EQ(rest.finish.weights_hash, whole.finish.weights_hash);
}

TEST_F(TrainerTest, TakesWeightsAloneFromInitFrom) {
  JobSpec spec = TinyJob();
  spec.checkpoint.every = 6;
  const JobRun first =
      RunJob(spec, {.checkpoint_directory = directory_.path()});
  JobSpec second = TinyJob();
  second.checkpoint.init_from = directory_.path() + "/step-6";
  second.steps = 1;
  second.optimizer.lr = 0;
  const JobRun run = RunJob(second);
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  EXPECT_EQ(run.steps[0].step, 1);
  EXPECT_EQ(run.finish.weights_hash, first.finish.weights_hash);
}

// The files of a checkpoint that went out and came back train as it does, in
// both precisions: what is stored are the fp32 masters.
TEST_F(TrainerTest, TakesWeightsFromHuggingFaceFiles) {
  for (const DType precision : {DType::kF32, DType::kBf16}) {
    const TestDirectory directory;
    JobSpec spec = TinyJob();
    spec.precision = precision;
    spec.steps = 2;
    spec.checkpoint.every = 2;
    const JobRun first =
        RunJob(spec, {.checkpoint_directory = directory.path()});
    ASSERT_TRUE(first.finish.status.ok()) << first.finish.status;
    const std::string native = directory.path() + "/step-2";
    const std::string files = directory.path() + "/files";
    const auto reader = CheckpointReader::Open(native);
    ASSERT_TRUE(reader.ok()) << reader.status();
    const auto exported = ExportHuggingFace(*reader, spec.model, files);
    ASSERT_TRUE(exported.ok()) << exported.status();
    std::vector<JobRun> runs;
    for (const std::string& from : {native, files}) {
      JobSpec next = TinyJob();
      next.precision = precision;
      next.checkpoint.init_from = from;
      runs.push_back(RunJob(next));
      ASSERT_TRUE(runs.back().finish.status.ok()) << runs.back().finish.status;
    }
    for (size_t n = 0; n < runs[0].steps.size(); ++n) {
      EXPECT_EQ(runs[0].steps[n].loss, runs[1].steps[n].loss);
      EXPECT_EQ(runs[0].steps[n].gradient_norm, runs[1].steps[n].gradient_norm);
    }
    EXPECT_EQ(runs[0].finish.weights_hash, runs[1].finish.weights_hash);
    EXPECT_NE(runs[0].steps[0].loss, first.steps[0].loss);
  }
}

TEST_F(TrainerTest, EvaluatesEverySoOftenAndAtTheEnd) {
  JobSpec spec = TinyJob();
  spec.eval.every = 4;
  const JobRun run = RunJob(spec, {.validation_sequences = 3});
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  ASSERT_THAT(run.evals, SizeIs(2));
  EXPECT_EQ(run.evals[0].step, 4);
  EXPECT_EQ(run.evals[1].step, 6);
  EXPECT_EQ(run.evals[0].tokens, 3 * spec.eval.seq_len);
  EXPECT_GT(run.evals[0].loss, 0);
}

TEST_F(TrainerTest, EvaluationLeavesTrainingAlone) {
  JobSpec spec = TinyJob();
  spec.eval.every = 1;
  spec.eval.micro = 3;
  spec.eval.seq_len = 5;
  EXPECT_EQ(RunJob(spec, {.validation_sequences = 4}).finish.weights_hash,
            RunJob(TinyJob()).finish.weights_hash);
}

// cases.md D5: the loss is the mean over tokens, whatever the microbatch.
TEST_F(TrainerTest, EvaluationLossDoesNotDependOnMicrobatch) {
  for (const bool llama : {false, true}) {
    std::vector<double> losses;
    for (const int micro : {1, 2, 4, 10}) {
      JobSpec spec = llama ? SmallLlamaJob() : SmallJob();
      spec.steps = 2;
      spec.eval.every = 2;
      spec.eval.micro = micro;
      spec.eval.batches = 2;
      const JobRun run = RunJob(spec, {.validation_sequences = 10});
      ASSERT_THAT(run.evals, SizeIs(1)) << run.finish.status;
      EXPECT_EQ(run.evals[0].tokens, 10 * spec.eval.seq_len);
      losses.push_back(run.evals[0].loss);
      EXPECT_NEAR(losses.back(), losses.front(), 1e-6) << "micro " << micro;
    }
  }
}

TEST_F(TrainerTest, EvaluationMayNeedTheLargerStepArena) {
  JobSpec spec = TinyJob();
  spec.memory.policy = Policy::kFull;
  spec.micro_batch = 1;
  spec.eval.every = 3;
  spec.eval.micro = 128;
  const JobRun run = RunJob(spec, {.validation_sequences = 20});
  ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
  EXPECT_THAT(run.differences, SizeIs(0));
  const PlannedJob job = PlanTestJob(spec, MakeTestDevice(spec)->backend());
  ASSERT_GT(job.programs.evaluation->step_bytes,
            job.programs.training.step_bytes);
  EXPECT_EQ(run.step_bytes, job.programs.evaluation->step_bytes);
  EXPECT_EQ(run.steps[0].memory, job.plan.ranks[0].memory);
}

TEST_F(TrainerTest, RefusesEvaluationWithoutData) {
  JobSpec spec = TinyJob();
  spec.eval.every = 2;
  const JobRun run = RunJob(spec, {.validation_sequences = 0});
  EXPECT_EQ(run.finish.status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TrainerTest, RefusesPlanOfAnotherGraph) {
  TrainerSetup setup = MakeSetup(TinyJob());
  setup.spec.model.ffn = 48;
  const auto trainer = Trainer::Create(std::move(setup));
  EXPECT_EQ(trainer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(trainer.status()), HasSubstr("another graph"));
}

TEST_F(TrainerTest, RefusesWhatDoesNotFit) {
  TrainerSetup setup = MakeSetup(TinyJob());
  setup.device =
      std::make_unique<HeapDevice>(CpuKernelTable(), /*available_bytes=*/1000);
  const auto trainer = Trainer::Create(std::move(setup));
  EXPECT_EQ(trainer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(trainer.status()), HasSubstr("have 1000"));
}

TEST_F(TrainerTest, RefusesBackendWithoutKernels) {
  static const KernelTable kNone;
  TrainerSetup setup = MakeSetup(TinyJob());
  setup.device = std::make_unique<HeapDevice>(kNone);
  const auto trainer = Trainer::Create(std::move(setup));
  EXPECT_EQ(trainer.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(trainer.status()), HasSubstr("linear fp32 backward"));
  EXPECT_THAT(Message(trainer.status()), HasSubstr("adamw fp32 forward"));
}

TEST_F(TrainerTest, ReportsPlanWithOneSizeAltered) {
  for (int c = 0; c < kNumMemoryClasses; ++c) {
    const MemoryClass altered = static_cast<MemoryClass>(c);
    TrainerSetup setup = MakeSetup(TinyJob());
    setup.plan.ranks[0].memory[altered] += 64;
    const auto trainer = Trainer::Create(std::move(setup));
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    EXPECT_THAT((*trainer)->plan_differences(),
                ElementsAre(HasSubstr(MemoryClassName(altered))));
  }
}

TEST_F(TrainerTest, ReportsAlteredArenaSizes) {
  TrainerSetup setup = MakeSetup(TinyJob());
  RankPlan& rank = setup.plan.ranks[0];
  rank.state_arena_bytes += 64;
  rank.step_arena_bytes -= 64;
  rank.saved_bytes += 64;
  rank.peak_bytes += 64;
  const auto trainer = Trainer::Create(std::move(setup));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_THAT((*trainer)->plan_differences(),
              ElementsAre(HasSubstr("peak"), HasSubstr("largest saved"),
                          HasSubstr("state arena"), HasSubstr("step arena")));
}

TEST_F(TrainerTest, FailsAfterManySkippedSteps) {
  // One weight is not a number: every loss is not finite.
  const std::string crafted = CraftWeights(
      TinyJob(), directory_.path(), [](const std::string& name, auto& values) {
        if (name == "L1.mlp.fc.weight") values[3] = std::nanf("");
      });
  JobSpec spec = TinyJob();
  spec.steps = 200;
  spec.checkpoint.init_from = crafted;
  const JobRun run = RunJob(spec);
  EXPECT_EQ(run.finish.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(run.finish.status), HasSubstr("20 steps in a row"));
  EXPECT_EQ(run.finish.last_step, kMostSkippedSteps);
  for (const StepReport& report : run.steps) EXPECT_TRUE(report.skipped);

  // Nothing was updated.
  JobSpec idle = spec;
  idle.steps = 1;
  EXPECT_EQ(RunJob(idle).finish.weights_hash, run.finish.weights_hash);
}

}  // namespace
}  // namespace ebb
