// Contract 1 with state off the device: where parameters and the optimizer's
// state lie changes no bit of what is trained, however late the copies are.
// Everything runs in poison mode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/runtime/testing/test_job.h"
#include "worker/runtime/testing/weights.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

struct Variant {
  const char* name;
  bool llama;
  DType precision = DType::kF32;
};

constexpr Variant kVariants[] = {
    {"Gpt", false},
    {"GptBf16", false, DType::kBf16},
    {"Llama", true},
    {"LlamaBf16", true, DType::kBf16},
};

// Five layers, three microbatches, dropout, evaluation after every step.
JobSpec Job(const Variant& variant) {
  JobSpec spec = variant.llama ? SmallLlamaJob() : SmallJob();
  spec.precision = variant.precision;
  spec.model.layers = 5;
  spec.model.dropout = 0.1;
  spec.global_batch = 6;
  spec.micro_batch = 2;
  spec.steps = 3;
  spec.optimizer.clip = 0.5;
  spec.eval.every = 1;
  spec.eval.batches = 1;
  return spec;
}

const TestJobOptions kEvaluates = {.validation_sequences = 6};

JobSpec WithState(JobSpec spec, Offload optimizer,
                  Offload parameters = Offload::kNone) {
  spec.memory.offload_optimizer = optimizer;
  spec.memory.offload_parameters = parameters;
  return spec;
}

class OffloadStateBits : public testing::TestWithParam<Variant> {
 protected:
  // All state on the device, nothing computed again.
  static const JobRun& Base(const Variant& variant) {
    static std::map<std::string, JobRun> cache;
    JobRun& run = cache[variant.name];
    if (run.steps.empty()) run = RunJob(Job(variant), kEvaluates);
    return run;
  }
};

TEST_P(OffloadStateBits, SameUnderEveryPolicy) {
  const JobRun& base = Base(GetParam());
  struct Choice {
    Policy policy;
    Offload saved;
    Offload optimizer;
    Offload parameters = Offload::kNone;
    int group = 1;
  };
  for (const Choice& choice :
       {Choice{Policy::kNone, Offload::kNone, Offload::kHost},
        Choice{Policy::kNone, Offload::kDisk, Offload::kDisk},
        Choice{Policy::kFull, Offload::kHost, Offload::kDisk},
        Choice{Policy::kNone, Offload::kNone, Offload::kNone, Offload::kHost},
        Choice{Policy::kNone, Offload::kHost, Offload::kHost, Offload::kHost},
        Choice{Policy::kFull, Offload::kNone, Offload::kNone, Offload::kHost},
        Choice{Policy::kFull, Offload::kHost, Offload::kHost, Offload::kHost,
               2},
        Choice{Policy::kCheap, Offload::kNone, Offload::kDisk, Offload::kHost},
        Choice{Policy::kCustom, Offload::kHost, Offload::kHost,
               Offload::kHost}}) {
    SCOPED_TRACE(absl::StrCat(PolicyName(choice.policy), " ", int(choice.saved),
                              " ", int(choice.optimizer), " ",
                              int(choice.parameters)));
    JobSpec spec =
        WithState(Job(GetParam()), choice.optimizer, choice.parameters);
    spec.memory.policy = choice.policy;
    spec.memory.group = choice.group;
    // Other decisions in other layers.
    if (choice.policy == Policy::kCustom) {
      spec.memory.recompute = {"L1.mlp.*", "L3.attention_norm.*", "L*.qkv"};
    }
    spec.memory.offload = choice.saved;
    const JobRun run = RunJob(spec, kEvaluates);
    ExpectSameBits(run, base);
    ExpectMeasuredAsPlanned(spec, run);
    EXPECT_EQ(
        run.steps[0].disk_bytes > 0,
        choice.saved == Offload::kDisk || choice.optimizer == Offload::kDisk);
    EXPECT_LT(run.state_bytes, base.state_bytes);
  }
}

TEST_P(OffloadStateBits, SameHoweverLateTheCopies) {
  for (const bool check : {false, true}) {
    SCOPED_TRACE(check);
    ExpectSameBits(
        RunJob(
            WithState(Job(GetParam()), Offload::kHost, Offload::kHost),
            {.validation_sequences = 6,
             .offload = {.check = check, .longest_delay_microseconds = 300}}),
        Base(GetParam()));
  }
}

TEST_P(OffloadStateBits, SpoiledCopyChangesTheLossAndIsFoundByChecksum) {
  const JobSpec spec =
      WithState(Job(GetParam()), Offload::kHost, Offload::kHost);
  for (const int64_t copy : {0, 9}) {
    SCOPED_TRACE(copy);
    const JobRun spoiled = RunJob(
        spec, {.validation_sequences = 6, .offload = {.spoiled_copy = copy}});
    ASSERT_TRUE(spoiled.finish.status.ok()) << spoiled.finish.status;
    EXPECT_NE(spoiled.finish.weights_hash,
              Base(GetParam()).finish.weights_hash);
    EXPECT_NE(spoiled.steps.back().loss, Base(GetParam()).steps.back().loss);

    const JobRun found =
        RunJob(spec, {.validation_sequences = 6,
                      .offload = {.check = true, .spoiled_copy = copy}});
    EXPECT_EQ(found.finish.status.code(), absl::StatusCode::kDataLoss);
    const std::string message(found.finish.status.message());
    EXPECT_THAT(message, HasSubstr("offloaded value "));
    EXPECT_THAT(message, HasSubstr("step 2"));
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, OffloadStateBits,
                         ::testing::ValuesIn(kVariants), [](const auto& info) {
                           return std::string(info.param.name);
                         });

// Shapes whose values are no multiple of 64 bytes, nor of a block of a disk,
// and an embedding that goes in pieces, the last one shorter.
TEST(OffloadStateJob, OfOddSizesIsTheSame) {
  for (const DType precision : {DType::kF32, DType::kBf16}) {
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(absl::StrCat(DTypeName(precision), " tied ", tied));
      JobSpec spec = Job(kVariants[0]);
      spec.precision = precision;
      spec.model.tied_embeddings = tied;
      spec.model.vocab = 1285;
      spec.model.hidden = 66;
      spec.model.heads = spec.model.kv_heads = 3;
      spec.model.ffn = 130;
      spec.model.seq_len = 31;
      spec.eval.seq_len = 31;
      spec.micro_batch = 1;
      spec.global_batch = 3;
      const JobRun base = RunJob(spec, kEvaluates);
      ASSERT_TRUE(base.finish.status.ok()) << base.finish.status;
      for (const auto& [optimizer, parameters] :
           {std::pair(Offload::kHost, Offload::kNone),
            {Offload::kDisk, Offload::kHost}}) {
        const JobSpec away = WithState(spec, optimizer, parameters);
        const JobRun run = RunJob(
            away, {.validation_sequences = 6, .offload = {.check = true}});
        ExpectSameBits(run, base);
        ExpectMeasuredAsPlanned(away, run);
      }
    }
  }
}

// Every byte of the optimizer's state comes once a step and goes once, however
// late and whatever evaluation does between steps; parameters come for every
// microbatch.
TEST(OffloadStateJob, CopiesWhatTheUpdateNeeds) {
  for (const DType precision : {DType::kF32, DType::kBf16}) {
    SCOPED_TRACE(DTypeName(precision));
    JobSpec spec = Job(kVariants[0]);
    spec.precision = precision;
    int64_t optimizer_bytes = 0, parameter_bytes = 0;
    for (const ParameterLayout& parameter :
         PlanTestJob(spec, MakeTestDevice(spec)->backend())
             .programs.training.parameters) {
      const int64_t num_elements =
          parameter.type.num_elements() * std::max(1, parameter.num_layers);
      optimizer_bytes += num_elements * 4 * (parameter.has_master() ? 3 : 2);
      parameter_bytes +=
          parameter.type.bytes() * std::max(1, parameter.num_layers);
    }
    const TestJobOptions late = {.validation_sequences = 6,
                                 .offload = {.longest_delay_microseconds = 50}};
    const JobRun host = RunJob(WithState(spec, Offload::kHost), late);
    const JobRun disk = RunJob(WithState(spec, Offload::kDisk), late);
    const JobRun both =
        RunJob(WithState(spec, Offload::kDisk, Offload::kHost), late);
    for (const JobRun* run : {&host, &disk, &both}) {
      ASSERT_EQ(run->steps.size(), 3u) << run->finish.status;
    }
    for (size_t n = 0; n < 3; ++n) {
      EXPECT_EQ(host.steps[n].copied,
                (CopiedBytes{.to_host = optimizer_bytes,
                             .from_host = optimizer_bytes}));
      EXPECT_EQ(disk.steps[n].copied,
                (CopiedBytes{.to_disk = optimizer_bytes,
                             .from_disk = optimizer_bytes}));
      const CopiedBytes& copied = both.steps[n].copied;
      EXPECT_EQ(copied.to_disk, optimizer_bytes);
      EXPECT_EQ(copied.from_disk, optimizer_bytes);
      EXPECT_GT(copied.from_host, copied.to_host);
      EXPECT_EQ(copied.to_host, parameter_bytes);
    }
  }
}

// A checkpoint holds the state wherever it lies, and fills it there.
TEST(OffloadStateJob, ContinuesFromACheckpointWhereverStateLies) {
  for (const DType precision : {DType::kF32, DType::kBf16}) {
    JobSpec spec = Job(kVariants[0]);
    spec.precision = precision;
    spec.steps = 6;
    const JobRun whole = RunJob(spec, kEvaluates);
    ASSERT_TRUE(whole.finish.status.ok()) << whole.finish.status;
    for (const auto& [first, second] :
         {std::pair(Offload::kHost, Offload::kNone),
          {Offload::kNone, Offload::kDisk},
          {Offload::kDisk, Offload::kHost}}) {
      SCOPED_TRACE(absl::StrCat(DTypeName(precision), " ", int(first), " ",
                                int(second)));
      const TestDirectory directory;
      JobSpec half = WithState(spec, first, Offload::kHost);
      half.steps = 3;
      half.checkpoint.every = 3;
      const JobRun begun =
          RunJob(half, {.validation_sequences = 6,
                        .checkpoint_directory = directory.path()});
      ASSERT_TRUE(begun.finish.status.ok()) << begun.finish.status;
      const JobRun rest =
          RunJob(WithState(spec, second,
                           second == Offload::kHost ? second : Offload::kNone),
                 {.validation_sequences = 6,
                  .resume_from = directory.path() + "/step-3"});
      ASSERT_TRUE(rest.finish.status.ok()) << rest.finish.status;
      ASSERT_EQ(rest.steps.size(), 3u);
      for (size_t n = 0; n < 3; ++n) {
        EXPECT_EQ(rest.steps[n].loss, whole.steps[n + 3].loss);
      }
      EXPECT_EQ(rest.finish.weights_hash, whole.finish.weights_hash);

      // Its weights alone start another job, alike.
      JobSpec next = spec;
      next.steps = 2;
      next.checkpoint.init_from = directory.path() + "/step-3";
      const JobRun base = RunJob(next, kEvaluates);
      ExpectSameBits(
          RunJob(WithState(next, second, Offload::kHost), kEvaluates), base);
    }
  }
}

// The recompute policy changes between steps; where state lies does not.
TEST(OffloadStateJob, SwitchesPolicyWhileStateIsAway) {
  JobSpec spec = Job(kVariants[1]);
  spec.steps = 6;
  const JobRun base = RunJob(spec, kEvaluates);
  spec = WithState(spec, Offload::kDisk, Offload::kHost);
  TestJobOptions options = {.validation_sequences = 6};
  const auto order = [&](int64_t number, const JobSpec& wanted) {
    PlanSwitch ordered;
    ordered.number = number;
    ordered.at_step = number + 1;
    ordered.plan = PlanTestJob(wanted, MakeTestDevice(wanted)->backend()).plan;
    options.switches.push_back({number, ordered});
  };
  JobSpec full = spec;
  full.memory.policy = Policy::kFull;
  order(1, full);
  JobSpec saved = spec;
  saved.memory.offload = Offload::kHost;
  order(2, saved);
  order(3, spec);
  order(4, WithState(spec, Offload::kNone));
  const JobRun run = RunJob(spec, options);
  ExpectSameBits(run, base);
  ASSERT_EQ(run.changes.size(), 4u);
  for (size_t n = 0; n < 3; ++n) {
    EXPECT_TRUE(run.changes[n].status.ok()) << run.changes[n].status;
  }
  EXPECT_GT(run.steps[2].host_bytes, run.steps[0].host_bytes);
  EXPECT_EQ(run.steps[5].disk_bytes, run.steps[0].disk_bytes);
  EXPECT_EQ(run.changes[3].status.code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(run.changes[3].status.message()),
              HasSubstr("lays parameters and moments out otherwise"));
}

}  // namespace
}  // namespace ebb
