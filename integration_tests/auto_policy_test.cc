// What policy `auto` plans is what runs: at ten budgets from roomy to the
// smallest that is possible, within each, with the bits of policy `none`.
#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
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
  CostProfile profile = RooflineProfile(backend);
  // Of models as small as these nothing would be worth a copy.
  profile.host.bytes_per_second = 1e12;
  profile.disk = profile.host;
  auto plan = PlanJob(spec, backend, profile);
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

class AutoPolicy : public ::testing::TestWithParam<Variant> {
 protected:
  static constexpr int64_t kRoomy = int64_t{1} << 40;

  struct Seen {
    std::set<std::string> plans;
    std::set<double> recompute;
    bool twice = false;
    bool to_host = false;
    bool to_disk = false;
  };

  // Runs the job at `num_budgets` budgets, each in poison mode, and expects the
  // bits of policy `none` and no more memory than the budget.
  static Seen RunAtBudgets(const JobSpec& spec, int num_budgets) {
    Seen seen;
    JobSpec kept = spec;
    kept.memory.offload = Offload::kNone;
    kept.memory.offload_optimizer = Offload::kNone;
    kept.memory.offload_parameters = Offload::kNone;
    const JobRun base =
        RunJob(kept, {.plan = Planned(kept, Policy::kNone, kRoomy)});
    EXPECT_TRUE(base.finish.status.ok()) << base.finish.status;
    const Plan roomy = Planned(spec, Policy::kAuto, kRoomy);
    const int64_t least = roomy.pareto.front().peak_bytes;
    const int64_t most = roomy.pareto.back().peak_bytes;
    for (int i = 0; i < num_budgets; ++i) {
      const int64_t budget = least + (most - least) / (num_budgets - 1) * i;
      SCOPED_TRACE(absl::StrCat("budget ", budget));
      const Plan plan = Planned(spec, Policy::kAuto, budget);
      EXPECT_TRUE(plan.fits);
      const std::string decisions = Decisions(plan);
      seen.plans.insert(decisions);
      seen.twice |= absl::StrContains(decisions, "recompute_twice");
      seen.to_host |= plan.ranks[0].host_bytes > 0;
      seen.to_disk |= plan.ranks[0].disk_bytes > 0;
      const JobRun run = RunJob(spec, {.plan = plan});
      EXPECT_TRUE(run.finish.status.ok()) << run.finish.status;
      EXPECT_EQ(run.differences, std::vector<std::string>());
      if (run.steps.size() != base.steps.size()) {
        ADD_FAILURE() << run.steps.size() << " steps";
        continue;
      }
      for (size_t n = 0; n < run.steps.size(); ++n) {
        const StepReport& step = run.steps[n];
        EXPECT_EQ(std::bit_cast<uint64_t>(step.loss),
                  std::bit_cast<uint64_t>(base.steps[n].loss));
        EXPECT_EQ(std::bit_cast<uint64_t>(step.gradient_norm),
                  std::bit_cast<uint64_t>(base.steps[n].gradient_norm));
        // Counted while it ran.
        EXPECT_LE(step.memory.Sum(), budget);
        EXPECT_EQ(step.memory, plan.ranks[0].memory);
        EXPECT_EQ(step.host_bytes, plan.ranks[0].host_bytes);
        EXPECT_EQ(step.disk_bytes, plan.ranks[0].disk_bytes);
        EXPECT_EQ(step.recompute_flops, plan.recompute_flops);
        seen.recompute.insert(step.recompute_flops);
      }
      EXPECT_EQ(run.finish.weights_hash, base.finish.weights_hash);
    }
    return seen;
  }
};

TEST_P(AutoPolicy, RunsWithinEveryBudgetWithTheSameBits) {
  const Seen seen = RunAtBudgets(Job(GetParam()), 10);
  // Equal plans would prove nothing.
  EXPECT_GE(seen.plans.size(), 9u);
  EXPECT_GE(seen.recompute.size(), 9u);
  EXPECT_TRUE(seen.twice);
  EXPECT_FALSE(seen.to_host || seen.to_disk);
}

TEST_P(AutoPolicy, MayOffloadWithTheSameBits) {
  for (const Offload place : {Offload::kHost, Offload::kDisk}) {
    JobSpec spec = Job(GetParam());
    spec.memory.offload = place;
    spec.memory.host_budget_bytes = kRoomy;
    const Seen seen = RunAtBudgets(spec, 4);
    EXPECT_EQ(seen.plans.size(), 4u);
    EXPECT_EQ(seen.to_host, place == Offload::kHost);
    EXPECT_EQ(seen.to_disk, place == Offload::kDisk);
  }
}

// What is left of the budget beside copies of parameters.
TEST_P(AutoPolicy, PlansBesideStateOffTheDeviceWithTheSameBits) {
  JobSpec spec = Job(GetParam());
  spec.memory.offload_optimizer = Offload::kHost;
  spec.memory.offload_parameters = Offload::kHost;
  spec.memory.host_budget_bytes = kRoomy;
  const Seen seen = RunAtBudgets(spec, 3);
  EXPECT_EQ(seen.plans.size(), 3u);
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
