// Summaries, losses bit by bit, and both outputs.
#include "client/commands/compare_text.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace ebb {
namespace {

using testing::HasSubstr;

ComparedJob MakeJob(const std::string& id, int num_steps, double slope) {
  ComparedJob job;
  job.job.set_id(id);
  job.job.set_state(v1::STATE_RUNNING);
  job.job.mutable_spec()->set_steps(30);
  job.job.mutable_plan()->set_policy("cheap");
  job.job.mutable_plan()->set_model_flops(3e9);
  job.job.set_last_step(num_steps);
  v1::RankPlan& rank = *job.job.mutable_plan()->add_ranks();
  (*rank.mutable_memory())["saved"] = 2048;
  rank.set_peak_bytes(2048);
  for (int number = 1; number <= num_steps; ++number) {
    v1::Step& step = job.steps.emplace_back();
    step.set_step(number);
    step.set_loss(5 - slope * number);
    step.set_tokens(100);
    step.set_duration_seconds(number == 1 ? 5 : 0.5);
    step.set_model_flops(3e9);
    step.set_recompute_flops(1e9);
    v1::RankStep& measured = *step.add_ranks();
    measured.set_saved_bytes(3000 - 100 * number);
    v1::ClassBytes& saved = (*measured.mutable_memory())["saved"];
    saved.set_predicted_bytes(2048);
    saved.set_peak_bytes(number == 2 ? 2048 : 1024);
  }
  return job;
}

TEST(CompareText, SummarizesAJob) {
  const JobSummary summary = Summarize(MakeJob("a1b2c3d4", 25, 0.1));
  EXPECT_EQ(summary.predicted_peak_bytes, 2048);
  EXPECT_EQ(summary.peak_bytes, 2048);  // of step 2
  EXPECT_EQ(summary.saved_bytes, 2900);
  // The first step is left out, unless there is no other.
  EXPECT_EQ(summary.tokens_per_second, 200);
  EXPECT_EQ(Summarize(MakeJob("a1b2c3d4", 1, 0.1)).tokens_per_second, 20);
  EXPECT_DOUBLE_EQ(summary.last_loss, 2.5);
  EXPECT_NEAR(summary.mean_loss, 5 - 0.1 * 15.5, 1e-12);  // steps 6 to 25
  EXPECT_EQ(summary.mean_steps, 20);
  EXPECT_EQ(summary.recompute_flops, 1e9);
}

TEST(CompareText, BeforeTheFirstStepThePlanSpeaks) {
  const ComparedJob job = MakeJob("a1b2c3d4", 0, 0.1);
  const JobSummary summary = Summarize(job);
  EXPECT_EQ(summary.predicted_peak_bytes, 2048);
  EXPECT_EQ(summary.peak_bytes, 0);
  EXPECT_EQ(summary.model_flops, 3e9);
  EXPECT_EQ(summary.mean_steps, 0);
  EXPECT_THAT(CompareTable({job}), HasSubstr("2.00 KiB / -"));
}

TEST(CompareText, LossesAreComparedBitByBit) {
  const ComparedJob a = MakeJob("a1b2c3d4", 5, 0.1);
  ComparedJob b = MakeJob("b1b2c3d4", 3, 0.1);
  EXPECT_EQ(CompareLosses(a, b).common_steps, 3);
  EXPECT_EQ(CompareLosses(a, b).first_difference, 0);
  b.steps[1].set_loss(std::nextafter(b.steps[1].loss(), 10));
  EXPECT_EQ(CompareLosses(a, b).first_difference, 2);
  // Steps that one of the two lacks are not common.
  b.steps.erase(b.steps.begin() + 1);
  EXPECT_EQ(CompareLosses(a, b).common_steps, 2);
  EXPECT_EQ(CompareLosses(b, a).first_difference, 0);
  EXPECT_EQ(CompareLosses(a, MakeJob("c1b2c3d4", 0, 0.1)).common_steps, 0);
}

TEST(CompareText, TableHasAColumnAJob) {
  std::vector<ComparedJob> jobs = {MakeJob("a1b2c3d4", 5, 0.1),
                                   MakeJob("b1b2c3d4", 5, 0.1),
                                   MakeJob("c1b2c3d4", 5, 0.2)};
  jobs[0].job.set_weights_hash(0x0123456789abcdef);
  // Step 2 is the one with the largest peak.
  v1::RankStep* rank = jobs[2].steps[1].mutable_ranks(0);
  (*rank->mutable_memory())["saved"].set_peak_bytes(4096);
  const std::string text = CompareTable(jobs);
  for (const char* part :
       {"                      a1b2c3d4    b1b2c3d4             c1b2c3d4\n",
        "saved                 2.00 KiB    2.00 KiB  2.00 KiB / 4.00 KiB\n",
        "largest saved         2.83 KiB    2.83 KiB             2.83 KiB\n",
        "recompute share         25.0 %      25.0 %               25.0 %\n",
        "tokens/s                   200         200                  200\n",
        "losses, a1b2c3d4                 same bits          differ at 1\n",
        "common steps                             5                    5\n",
        "weights               01234567           -                    -\n",
        "attention as full square"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(CompareText, JsonHasAllClassesAndExactNumbers) {
  const auto json =
      CompareJson({MakeJob("a1b2c3d4", 5, 0.1), MakeJob("b1b2c3d4", 4, 0.1)});
  ASSERT_EQ(json["jobs"].size(), 2u);
  const auto& job = json["jobs"][1];
  EXPECT_EQ(job["memory"].size(), 10u);
  EXPECT_EQ(job["memory"]["saved"]["peak_bytes"], "2048");
  EXPECT_EQ(job["memory"]["gradients"]["predicted_bytes"], "0");
  EXPECT_EQ(job["losses"]["compared_with"], "a1b2c3d4");
  EXPECT_EQ(job["losses"]["common_steps"], 4);
  EXPECT_EQ(job["losses"]["same_bits"], true);
  EXPECT_EQ(job["recompute_share"], 0.25);
}

}  // namespace
}  // namespace ebb
