// A sampler against the loss that evaluation of the same model gives.
#include "worker/runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/runtime/testing/test_job.h"
#include "worker/runtime/testing/weights.h"

namespace ebb {
namespace {

// Trains the job for two steps and gives the checkpoint's directory.
std::string Train(JobSpec spec, const TestDirectory& directory,
                  JobRun* run = nullptr) {
  spec.steps = 2;
  spec.checkpoint.every = 2;
  JobRun trained =
      RunJob(spec, {.validation_sequences = spec.eval.every > 0 ? 1 : 0,
                    .checkpoint_directory = directory.path()});
  EXPECT_TRUE(trained.finish.status.ok()) << trained.finish.status;
  if (run != nullptr) *run = std::move(trained);
  return directory.path() + "/step-2";
}

std::unique_ptr<Sampler> Open(const JobSpec& spec, const std::string& directory,
                              int64_t num_tokens) {
  const auto checkpoint = CheckpointReader::Open(directory);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  auto sampler =
      Sampler::Create(spec, MakeTestDevice(spec), *checkpoint, num_tokens);
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  return *std::move(sampler);
}

std::vector<float> LogitsOf(Sampler& sampler, std::vector<int32_t> context) {
  const auto logits = sampler.Logits(context);
  EXPECT_TRUE(logits.ok()) << logits.status();
  return {logits->begin(), logits->end()};
}

class SamplerTest : public ::testing::TestWithParam<AttentionKind> {};

// Every context's log-probability of its target, summed: the evaluation loss.
TEST_P(SamplerTest, LogitsGiveTheEvaluationLoss) {
  JobSpec spec = SmallJob();
  spec.model.attention = GetParam();
  spec.eval = {.every = 2, .batches = 1, .micro = 1, .seq_len = 32};
  const TestDirectory directory;
  JobRun run;
  const std::string checkpoint = Train(spec, directory, &run);
  ASSERT_EQ(run.evals.size(), 1u);
  std::vector<int32_t> tokens(32), targets(32);
  ASSERT_TRUE(FormulaSource(32).Fill(0, tokens, targets).ok());
  const auto sampler = Open(spec, checkpoint, 32);
  double loss = 0;
  for (size_t n = 1; n <= tokens.size(); ++n) {
    const std::vector<float> logits =
        LogitsOf(*sampler, {tokens.begin(), tokens.begin() + n});
    ASSERT_EQ(logits.size(), 257u);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    loss += std::log(sum) - logits[targets[n - 1]];
  }
  EXPECT_NEAR(loss / 32, run.evals[0].loss, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Attention, SamplerTest,
                         ::testing::Values(AttentionKind::kFused,
                                           AttentionKind::kUnfused));

TEST(Sampler, Bf16LogitsAreCloseToThoseOfFp32) {
  JobSpec spec = SmallJob();
  const TestDirectory directory;
  const std::string checkpoint = Train(spec, directory);
  const std::vector<float> exact =
      LogitsOf(*Open(spec, checkpoint, 3), {5, 6, 7});
  spec.precision = DType::kBf16;
  const std::vector<float> rounded =
      LogitsOf(*Open(spec, checkpoint, 3), {5, 6, 7});
  float largest = 0;
  for (const float logit : exact) largest = std::max(largest, std::abs(logit));
  EXPECT_NE(rounded, exact);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(rounded[i], exact[i], largest / 32);
  }
}

TEST(Sampler, ALongContextCountsByItsEnd) {
  const JobSpec spec = SmallJob();
  const TestDirectory directory;
  const std::string checkpoint = Train(spec, directory);
  std::vector<int32_t> tokens(40), targets(40);
  ASSERT_TRUE(FormulaSource(40).Fill(0, tokens, targets).ok());
  const auto sampler = Open(spec, checkpoint, 100);
  EXPECT_EQ(LogitsOf(*sampler, tokens),
            LogitsOf(*sampler, {tokens.end() - 32, tokens.end()}));
}

TEST(Sampler, APaddedContextIsOnlyAsLongAsNeeded) {
  const JobSpec spec = SmallJob();
  const TestDirectory directory;
  const std::string checkpoint = Train(spec, directory);
  const auto small = Open(spec, checkpoint, 3);
  const auto large = Open(spec, checkpoint, 32);
  const std::vector<float> a = LogitsOf(*small, {5, 6, 7});
  const std::vector<float> b = LogitsOf(*large, {5, 6, 7});
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5);
}

TEST(Sampler, SaysWhatIsWrongWithACheckpoint) {
  JobSpec spec = SmallJob();
  const TestDirectory directory;
  const auto checkpoint = CheckpointReader::Open(Train(spec, directory));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ++spec.model.layers;
  EXPECT_EQ(Sampler::Create(spec, MakeTestDevice(spec), *checkpoint, 3)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ebb
