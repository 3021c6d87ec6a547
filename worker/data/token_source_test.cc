// Batches for training and evaluation: counts, coverage, padding, refusals.
#include "worker/data/token_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "worker/data/testing/token_file_writer.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using testing::ScatteredTokens;
using testing::TemporaryDirectory;
using testing::WriteFile;
using testing::WriteGpt2Tokens;

class TokenSourceTest : public ::testing::Test {
 protected:
  TokenSourceTest() {
    spec_.model.vocab = 257;
    spec_.model.seq_len = 32;
    spec_.global_batch = 8;
    spec_.micro_batch = 4;
    spec_.eval.seq_len = 32;
    spec_.eval.batches = 8;
    spec_.data.train = directory_ / "train.bin";
  }

  void WriteTrain(int64_t tokens) {
    WriteGpt2Tokens(directory_ / "train.bin", ScatteredTokens(tokens));
  }

  TemporaryDirectory directory_;
  JobSpec spec_;
};

TEST_F(TokenSourceTest, CountsMicrobatchesByTheRule) {
  // (tokens - 1) div (ranks * micro * seq_len).
  for (auto [tokens, batches] : {std::pair{1025, 8}, {1024, 7}, {129, 1}}) {
    WriteTrain(tokens);
    auto source = TokenSource::OpenTraining(spec_, 1);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->num_sequences() / 4, batches) << tokens;
  }
  WriteTrain(257);
  auto source = TokenSource::OpenTraining(spec_, 2);
  ASSERT_TRUE(source.ok());
  EXPECT_EQ((*source)->num_sequences() / 8, 1);
}

TEST_F(TokenSourceTest, RefusesDataOfLessThanAMicrobatchPerRank) {
  WriteTrain(128);
  absl::Status status = TokenSource::OpenTraining(spec_, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("need at least 129 (4 sequences of 32 and 1 more: a "
                        "microbatch of 4 on each of 1 data ranks), have 128 in "
                        "1 file, that is 3 sequences: " +
                        spec_.data.train + ": data.train"));
  WriteTrain(256);
  status = TokenSource::OpenTraining(spec_, 2).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("need at least 257 (8 sequences"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("have 256 in 1 file"));
}

TEST_F(TokenSourceTest, RefusesManyFilesThatAreAllTooShort) {
  for (int i = 0; i < 100; ++i) {
    WriteFile(directory_ / (std::to_string(i) + ".txt"), "short");
  }
  spec_.data.train = directory_ / "*.txt";
  EXPECT_THAT(
      std::string(TokenSource::OpenTraining(spec_, 1).status().message()),
      HasSubstr("have 600 in 100 files, that is 0 sequences"));
}

// One epoch of 4 shards with disjoint tokens on 2 ranks: rank r takes
// microbatches r, r + 2, ... of each global batch.
TEST_F(TokenSourceTest, UsesEverySequenceOfEveryShardOnceAnEpoch) {
  for (int shard = 0; shard < 4; ++shard) {
    std::vector<uint16_t> tokens;
    for (int i = 0; i < 15 * 32 + 1 + shard; ++i) {
      tokens.push_back(static_cast<uint16_t>(shard * 1000 + i));
    }
    WriteGpt2Tokens(directory_ / ("s" + std::to_string(shard) + ".bin"),
                    tokens);
  }
  spec_.data.train = directory_ / "s*.bin";
  spec_.model.vocab = 5000;
  std::map<int32_t, int> first_tokens;
  std::vector<int> positions_of_shard;
  for (int rank = 0; rank < 2; ++rank) {
    auto source = TokenSource::OpenTraining(spec_, 2);
    ASSERT_TRUE(source.ok()) << source.status();
    ASSERT_EQ((*source)->num_sequences(), 60);
    // 7 batches of 8 and a half: the eighth runs on into the next epoch.
    for (int64_t at = rank * 4; at < 60; at += 8) {
      std::vector<int32_t> tokens(4 * 32), targets(4 * 32);
      ASSERT_TRUE((*source)->Fill(at, tokens, targets).ok());
      for (int i = 0; i < 4 && at + i < 60; ++i) {
        ++first_tokens[tokens[i * 32]];
        for (int j = 0; j < 32; ++j) {
          ASSERT_EQ(targets[i * 32 + j], tokens[i * 32 + j] + 1);
        }
      }
    }
  }
  EXPECT_EQ(first_tokens.size(), 60u);
  for (const auto& [token, count] : first_tokens) {
    EXPECT_EQ(count, 1) << token;
    EXPECT_EQ(token % 1000 % 32, 0);
  }
}

TEST_F(TokenSourceTest, ABatchMayStraddleTwoEpochs) {
  WriteTrain(20001);
  auto source = TokenSource::OpenTraining(spec_, 1);
  ASSERT_TRUE(source.ok());
  EXPECT_EQ((*source)->num_sequences(), 625);
  EXPECT_EQ((*source)->num_targets(), 20000);
  // Batch 78 of 8 holds the last sequence of epoch 0 and seven of epoch 1, and
  // equals the same positions filled one by one.
  std::vector<int32_t> tokens(8 * 32), targets(8 * 32);
  ASSERT_TRUE((*source)->Fill(78 * 8, tokens, targets).ok());
  for (int i = 0; i < 8; ++i) {
    std::vector<int32_t> one(32), one_target(32);
    ASSERT_TRUE((*source)->Fill(78 * 8 + i, one, one_target).ok());
    EXPECT_TRUE(std::equal(one.begin(), one.end(), tokens.begin() + i * 32));
    EXPECT_TRUE(std::equal(one_target.begin(), one_target.end(),
                           targets.begin() + i * 32));
    EXPECT_THAT(one_target, ::testing::Each(::testing::Ge(0)));
  }
}

// A loss that depends on every token and target, as a model's would.
double PretendLoss(int32_t token, int32_t target) {
  return 1.0 + 0.001 * token * target;
}

// Ten sequences: whatever the microbatch, the sum over targets that count and
// their number are the same, and padding counts nowhere.
TEST_F(TokenSourceTest, EvaluationDoesNotDependOnTheMicrobatch) {
  WriteTrain(10 * 32 + 5);
  spec_.data.validation = spec_.data.train;
  double expected = 0;
  {
    const std::vector<uint16_t> t = ScatteredTokens(10 * 32 + 5);
    for (int i = 0; i < 320; ++i) expected += PretendLoss(t[i], t[i + 1]);
    expected /= 320;
  }
  for (int micro : {1, 2, 4, 10}) {
    auto source = TokenSource::OpenEvaluation(spec_);
    ASSERT_TRUE(source.ok()) << source.status();
    ASSERT_EQ((*source)->num_sequences(), 10);
    ASSERT_EQ((*source)->num_targets(), 320);
    double sum = 0;
    int64_t count = 0;
    int64_t padded = 0;
    for (int64_t at = 0; at < 10; at += micro) {
      std::vector<int32_t> tokens(micro * 32, -7), targets(micro * 32, -7);
      ASSERT_TRUE((*source)->Fill(at, tokens, targets).ok());
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (targets[i] == -1) {
          EXPECT_EQ(tokens[i], 0);
          ++padded;
          continue;
        }
        sum += PretendLoss(tokens[i], targets[i]);
        ++count;
      }
    }
    EXPECT_EQ(count, 320);
    EXPECT_EQ(padded, micro == 4 ? 2 * 32 : 0);
    EXPECT_NEAR(sum / static_cast<double>(count), expected, 1e-9);
  }
}

TEST_F(TokenSourceTest, EvaluationCoversWhatIsAskedOrWhatThereIs) {
  EXPECT_EQ(EvalSequences(8, 8, 1000), 64);
  EXPECT_EQ(EvalSequences(8, 8, 64), 64);
  EXPECT_EQ(EvalSequences(8, 8, 10), 10);
  WriteTrain(1025);
  spec_.data.validation = spec_.data.train;
  spec_.eval.batches = 1;
  spec_.eval.seq_len = 17;  // another length than in training
  auto source = TokenSource::OpenEvaluation(spec_);
  ASSERT_TRUE(source.ok());
  EXPECT_EQ((*source)->files().num_sequences(), 60);
  EXPECT_EQ((*source)->num_sequences(), 8);
  // Beyond the evaluation there is padding, though the file has more.
  std::vector<int32_t> tokens(17), targets(17);
  ASSERT_TRUE((*source)->Fill(7, tokens, targets).ok());
  EXPECT_GE(targets[0], 0);
  ASSERT_TRUE((*source)->Fill(8, tokens, targets).ok());
  EXPECT_EQ(targets, std::vector<int32_t>(17, -1));
}

TEST_F(TokenSourceTest, EvaluationNeedsOneSequence) {
  spec_.data.validation = WriteFile(directory_ / "v.txt", std::string(31, 'x'));
  const absl::Status status = TokenSource::OpenEvaluation(spec_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("need at least 33"));
  WriteFile(spec_.data.validation, std::string(32, 'x'));
  EXPECT_TRUE(TokenSource::OpenEvaluation(spec_).ok());
}

TEST_F(TokenSourceTest, CheckCountsBothFields) {
  WriteTrain(1025);
  spec_.data.validation =
      WriteFile(directory_ / "v.txt", std::string(100, 'x'));
  const DataCheck check = CheckDataFiles(spec_, 1);
  EXPECT_TRUE(check.problems.empty());
  EXPECT_EQ(check.train.sequences, 32);
  EXPECT_EQ(check.validation.sequences, 3);
  EXPECT_EQ(check.validation.unused_tokens, 4);
}

TEST_F(TokenSourceTest, CheckReportsBothFieldsAtOnce) {
  spec_.data.train = directory_ / "none";
  spec_.data.validation = directory_ / "none*";
  const DataCheck check = CheckDataFiles(spec_, 1);
  ASSERT_EQ(check.problems.size(), 2u);
  EXPECT_EQ(check.problems[0].field, "data.train");
  EXPECT_EQ(check.problems[0].value, spec_.data.train);
  EXPECT_EQ(check.problems[1].field, "data.validation");
  for (const DataProblem& problem : check.problems) {
    EXPECT_EQ(problem.status.code(), absl::StatusCode::kNotFound);
  }
}

TEST_F(TokenSourceTest, CheckTakesAnAbsentValidationAsNone) {
  WriteTrain(1025);
  EXPECT_TRUE(CheckDataFiles(spec_, 1).problems.empty());
}

}  // namespace
}  // namespace ebb
