// Jobs and steps as rows.
#include "client/commands/job_text.h"

#include "gtest/gtest.h"
#include "proto/job_service.pb.h"

namespace ebb {
namespace {

v1::Job Finished() {
  v1::Job job;
  job.set_id("a1b2c3d4");
  job.set_name("evil\x1b[2J");
  job.set_state(v1::STATE_SUCCEEDED);
  job.set_reason(v1::REASON_COMPLETED);
  job.set_last_step(200);
  job.set_last_loss(1.65123);
  job.mutable_spec()->set_steps(200);
  job.mutable_plan()->set_policy("full");
  job.mutable_plan()->add_ranks()->set_peak_bytes(1 << 20);
  job.mutable_plan()->add_ranks()->set_peak_bytes(3 << 20);
  job.mutable_create_time()->set_seconds(1700000000);
  job.mutable_start_time()->set_seconds(1700000010);
  job.mutable_end_time()->set_seconds(1700000195);
  return job;
}

v1::Step StepOfTwoRanks() {
  v1::Step step;
  step.set_step(7);
  step.set_loss(5.54517);
  step.set_gradient_norm(1.25);
  step.set_learning_rate(0.001);
  step.set_tokens(2048);
  step.set_duration_seconds(0.5);
  step.set_model_flops(3e9);
  step.set_recompute_flops(1e9);
  step.set_policy("full");
  for (const int64_t mib : {1, 3}) {
    v1::RankStep* rank = step.add_ranks();
    (*rank->mutable_memory())["saved"].set_peak_bytes(mib << 20);
    (*rank->mutable_memory())["live"].set_peak_bytes(1 << 20);
    rank->set_saved_bytes(mib << 20);
  }
  return step;
}

TEST(JobText, ListRow) {
  Table table = JobTable();
  table.AddRow(JobRow(Finished(), absl::UTCTimeZone()));
  EXPECT_EQ(table.Render(),
            "ID        NAME         STATE      REASON        STEP    LOSS  "
            "POLICY      PEAK  CREATED\n"
            "a1b2c3d4  evil\\x1b[2J  succeeded  completed  200/200  1.6512  "
            "full    3.00 MiB  2023-11-14 22:13:20\n");
}

TEST(JobText, TrainingThatWentWrongDoesNotHide) {
  v1::Job job = Finished();
  job.mutable_warning()->set_kind(v1::TrainingWarning::KIND_NOT_FINITE);
  job.mutable_warning()->set_message("loss nan at step 7");
  EXPECT_EQ(JobRow(job, absl::UTCTimeZone())[3], "completed, not_finite");
  EXPECT_NE(EndText(job).find(": WARNING: loss nan at step 7"),
            std::string::npos);
  job.clear_reason();
  EXPECT_EQ(JobRow(job, absl::UTCTimeZone())[3], "not_finite");
}

TEST(JobText, ARowStaysOnOneLineOfANarrowTerminal) {
  v1::Job job = Finished();
  job.set_name(std::string(60, 'n'));
  job.mutable_spec()->set_steps(1234567);
  Table table = JobTable();
  table.AddRow(JobRow(job, absl::UTCTimeZone()));
  EXPECT_EQ(table.RenderWithin(40),
            "ID        STATE             STEP    LOSS\n"
            "a1b2c3d4  succeeded  200/1234567  1.6512\n");
}

TEST(JobText, StepRow) {
  const Table table = StepTable();
  EXPECT_EQ(table.RenderHeader() + table.RenderRow(StepRow(StepOfTwoRanks())),
            "    STEP       LOSS  GRAD NORM  LEARNING RATE  TOKENS/S   SECONDS"
            "       PEAK      SAVED  RECOMPUTE  POLICY\n"
            "       7     5.5452       1.25          0.001     4.10k     0.500"
            "   4.00 MiB   3.00 MiB     25.0 %  full\n");
}

TEST(JobText, ProgressTakesTheLargestRank) {
  const ProgressStep step = ToProgressStep(StepOfTwoRanks());
  EXPECT_EQ(step.step, 7);
  EXPECT_EQ(step.peak_bytes, 4 << 20);
  EXPECT_EQ(step.tokens, 2048);
  EXPECT_EQ(step.recompute_flops, 1e9);
}

TEST(JobText, EndOfAJob) {
  v1::Job job = Finished();
  EXPECT_EQ(EndText(job),
            "a1b2c3d4 succeeded after 3m 05s: step 200/200, loss 1.6512");
  EXPECT_EQ(JobExitCode(job), 0);
  job.set_state(v1::STATE_FAILED);
  job.set_reason(v1::REASON_WORKER_EXITED);
  job.set_message("rank 0: signal 9\n");
  job.set_last_step(0);
  EXPECT_EQ(EndText(job),
            "a1b2c3d4 failed after 3m 05s: step 0/200: worker_exited: rank 0: "
            "signal 9 (`ebb logs a1b2c3d4` shows what the ranks said)");
  EXPECT_EQ(JobExitCode(job), 100);
  job.set_state(v1::STATE_CANCELLED);
  EXPECT_EQ(JobExitCode(job), 103);
}

TEST(JobText, TimesThatAreNotSet) {
  EXPECT_EQ(ToTime(v1::Job().create_time()), absl::InfinitePast());
}

TEST(JobText, SharesOfNothingAreZero) {
  EXPECT_EQ(RecomputeShare(0, 0), 0);
  EXPECT_EQ(RecomputeShare(3, 1), 0.25);
}

TEST(JobText, AMessageOfSeveralLinesEndsInOne) {
  v1::Job job;
  job.set_id("a1b2c3d4");
  job.set_state(v1::STATE_FAILED);
  job.set_message("rank 0: signal 9\n\nlast line\x01 of the log\n");
  EXPECT_EQ(MessageLines(job),
            (std::vector<std::string>{"rank 0: signal 9",
                                      "last line\\x01 of the log"}));
  EXPECT_EQ(EndText(job).find("last line"), std::string::npos);
  EXPECT_NE(EndText(job).find("rank 0: signal 9"), std::string::npos);
  job.set_message("");
  EXPECT_EQ(MessageLines(job), std::vector<std::string>{""});
}

}  // namespace
}  // namespace ebb
