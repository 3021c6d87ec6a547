// What policy `auto` plans is what runs: at ten budgets from roomy to the
// smallest that is possible, within each, with the bits of policy `none`.
#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/planner/plan_job.h"
#include "worker/runtime/testing/test_job.h"

namespace ebb {
namespace {

struct Variant {
  const char* name;
  bool llama;
  AttentionKind attention;
  DType precision;
};

// Nine layers, so that groups of several differ.
JobSpec Job(const Variant& variant) {
  JobSpec spec = variant.llama ? SmallLlamaJob() : SmallJob();
  spec.precision = variant.precision;
  spec.model.layers = 9;
  spec.model.attention = variant.attention;
  spec.model.dropout = 0.1;
  spec.global_batch = 4;
  spec.micro_batch = 2;
  spec.steps = 3;
  return spec;
}

Plan Planned(JobSpec spec, Policy policy, int64_t budget_bytes) {
  spec.memory.policy = policy;
  spec.memory.budget_bytes = budget_bytes;
  const Backend backend = MakeTestDevice(spec)->backend();
  auto plan = PlanJob(spec, backend, RooflineProfile(backend));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// The decisions in words.
std::string Decisions(const Plan& plan) {
  std::string text;
  for (const Decision& decision : plan.decisions) {
    absl::StrAppend(&text, decision.value, " ", decision.first_layer, "-",
                    decision.last_layer, " ",
                    ActivationDecisionName(decision.decision), "\n");
  }
  return text;
}

class AutoPolicy : public ::testing::TestWithParam<Variant> {};

TEST_P(AutoPolicy, RunsWithinEveryBudgetWithTheSameBits) {
  constexpr int64_t kRoomy = int64_t{1} << 40;
  const JobSpec spec = Job(GetParam());
  const JobRun base =
      RunJob(spec, {.plan = Planned(spec, Policy::kNone, kRoomy)});
  ASSERT_TRUE(base.finish.status.ok()) << base.finish.status;
  const Plan roomy = Planned(spec, Policy::kAuto, kRoomy);
  const int64_t least = roomy.pareto.front().peak_bytes;
  const int64_t most = roomy.pareto.back().peak_bytes;
  constexpr int kNumBudgets = 10;
  std::set<std::string> plans;
  std::set<double> recompute;
  bool twice = false;
  for (int i = 0; i < kNumBudgets; ++i) {
    const int64_t budget = least + (most - least) / (kNumBudgets - 1) * i;
    SCOPED_TRACE(absl::StrCat("budget ", budget));
    const Plan plan = Planned(spec, Policy::kAuto, budget);
    ASSERT_TRUE(plan.fits);
    plans.insert(Decisions(plan));
    twice =
        twice || Decisions(plan).find("recompute_twice") != std::string::npos;
    const JobRun run = RunJob(spec, {.plan = plan});
    ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
    EXPECT_EQ(run.differences, std::vector<std::string>());
    ASSERT_EQ(run.steps.size(), base.steps.size());
    for (size_t n = 0; n < run.steps.size(); ++n) {
      const StepReport& step = run.steps[n];
      EXPECT_EQ(std::bit_cast<uint64_t>(step.loss),
                std::bit_cast<uint64_t>(base.steps[n].loss));
      EXPECT_EQ(std::bit_cast<uint64_t>(step.gradient_norm),
                std::bit_cast<uint64_t>(base.steps[n].gradient_norm));
      // Counted while it ran.
      EXPECT_LE(step.memory.Sum(), budget);
      EXPECT_EQ(step.memory, plan.ranks[0].memory);
      EXPECT_EQ(step.recompute_flops, plan.recompute_flops);
      recompute.insert(step.recompute_flops);
    }
    EXPECT_EQ(run.finish.weights_hash, base.finish.weights_hash);
  }
  // Equal plans would prove nothing.
  EXPECT_GE(plans.size(), 9u);
  EXPECT_GE(recompute.size(), 9u);
  EXPECT_TRUE(twice);
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, AutoPolicy,
    ::testing::Values(
        Variant{"GptFused", false, AttentionKind::kFused, DType::kF32},
        Variant{"GptUnfusedBf16", false, AttentionKind::kUnfused, DType::kBf16},
        Variant{"LlamaFusedBf16", true, AttentionKind::kFused, DType::kBf16},
        Variant{"LlamaUnfused", true, AttentionKind::kUnfused, DType::kF32}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ebb
