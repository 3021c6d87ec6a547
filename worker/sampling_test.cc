// Text and ids from a small model that was trained on one sentence.
#include "worker/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "proto/convert.h"
#include "proto/effective_spec.h"
#include "proto/spec_writer.h"
#include "worker/data/token_source.h"
#include "worker/runtime/testing/test_job.h"
#include "worker/runtime/testing/weights.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

// Its length has no divisor in common with seq_len, so that the model sees it
// begin at every position.
constexpr char kSentence[] = "This memory is real now. ";
constexpr int kSteps = 200;

// The job's checkpoints, made once for all tests.
class SamplingTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TestDirectory;
    std::ofstream text(directory_->path() + "/corpus.txt");
    for (int i = 0; i < 100; ++i) text << kSentence;
    text.close();
    v1::JobSpec message;
    v1::ModelSpec& model = *message.mutable_model();
    model.set_layers(2);
    model.set_hidden(32);
    model.set_heads(2);
    model.set_vocab(300);
    model.set_seq_len(24);
    message.mutable_data()->set_train(directory_->path() + "/corpus.txt");
    message.mutable_batch()->set_global(8);
    message.mutable_batch()->set_micro(8);
    message.mutable_optimizer()->set_lr(1e-2);
    message.mutable_checkpoint()->set_every(kSteps / 2);
    message.set_steps(kSteps);
    const absl::StatusOr<v1::JobSpec> effective = EffectiveSpec(
        message,
        {.threads = 1, .budget_bytes = 1 << 30, .host_budget_bytes = 1});
    ASSERT_TRUE(effective.ok()) << effective.status();
    const absl::StatusOr<JobSpec> spec = JobSpecFromMessage(*effective);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto train = TokenSource::OpenTraining(*spec, 1);
    ASSERT_TRUE(train.ok()) << train.status();
    TrainerSetup setup = MakeSetup(*spec, {.poison = false});
    setup.train = train->get();
    setup.checkpoint_directory = Checkpoints();
    setup.spec_text = SpecToJson(*effective);
    auto trainer = Trainer::Create(std::move(setup));
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    RecordingObserver observer;
    const TrainerFinish finish = (*trainer)->Run(observer);
    ASSERT_TRUE(finish.status.ok()) << finish.status;
  }
  static void TearDownTestSuite() { delete directory_; }

  static std::string Checkpoints() {
    return directory_->path() + "/checkpoints";
  }

  absl::Status Run(const std::string& prompt) {
    output_.clear();
    return Sample(options_, prompt, [this](absl::string_view piece) {
      output_.append(piece.data(), piece.size());
      return true;
    });
  }

  static TestDirectory* directory_;
  SamplingOptions options_ = {.checkpoints = Checkpoints(),
                              .num_tokens = 20,
                              .settings = {.temperature = 0}};
  std::string output_;
};

TestDirectory* SamplingTest::directory_ = nullptr;

TEST_F(SamplingTest, ContinuesTheTextThatItLearned) {
  // Longer than the model's seq_len of 24 at the end.
  options_.num_tokens = 60;
  ASSERT_EQ(Run("This memory is"), absl::OkStatus());
  EXPECT_EQ(
      output_,
      "200\n real now. This memory is real now. This memory is real now.");
}

TEST_F(SamplingTest, AnEmptyPromptBeginsAFile) {
  options_.settings.temperature = 1;
  EXPECT_EQ(Run(""), absl::OkStatus());
  EXPECT_GT(output_.size(), 3u);
}

TEST_F(SamplingTest, TheSeedDecides) {
  options_.settings = {.temperature = 3, .seed = 5};
  ASSERT_EQ(Run("The"), absl::OkStatus());
  const std::string first = output_;
  ASSERT_EQ(Run("The"), absl::OkStatus());
  EXPECT_EQ(output_, first);
  options_.settings.seed = 6;
  ASSERT_EQ(Run("The"), absl::OkStatus());
  EXPECT_NE(output_, first);
}

TEST_F(SamplingTest, IdsGoAndComeAsNumbers) {
  options_.ids = true;
  options_.num_tokens = 3;
  ASSERT_EQ(Run("84 104\n105 115 32 109"), absl::OkStatus());  // "This m"
  EXPECT_EQ(output_, "200\n101\n109\n111\n");                  // "emo"
  EXPECT_EQ(Run("84 300").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Run("-1").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Run("").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(output_, "");
}

TEST_F(SamplingTest, ACheckpointMayBeNamed) {
  options_.step = 100;
  ASSERT_EQ(Run("The"), absl::OkStatus());
  EXPECT_EQ(output_.substr(0, 4), "100\n");
  options_.step = 101;
  const absl::Status status = Run("The");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("no checkpoint of step 101: the newest is of step 200"));
  options_.step = 0;
  options_.checkpoints = directory_->path() + "/none";
  EXPECT_EQ(Run("The").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(output_, "");
}

TEST_F(SamplingTest, EndsWhenNobodyReads) {
  int pieces = 0;
  EXPECT_EQ(
      Sample(options_, "The", [&](absl::string_view) { return ++pieces < 3; })
          .code(),
      absl::StatusCode::kCancelled);
  EXPECT_EQ(pieces, 3);
}

}  // namespace
}  // namespace ebb
