// Batches of a job from its token files: the training order, which never ends,
// and the evaluation order, which does.
//
// Training visits every sequence of the data exactly once an epoch and runs on
// into the next one, so a batch may straddle two epochs and none is short.
// Evaluation reads the first sequences in the order of the files, the same ones
// every time, with no shuffling; positions beyond them are padding (token 0,
// target -1).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/order.h"
#include "worker/data/token_files.h"
#include "worker/model/job_spec.h"
#include "worker/runtime/batch_source.h"

namespace ebb {

// Sequences that one evaluation covers: `batches` global batches or, where the
// data has fewer, all that it has.
int64_t EvalSequences(int64_t batches, int64_t global_batch, int64_t available);

// Immutable after opening: any thread may call Fill.
class TokenSource final : public BatchSource {
 public:
  // Opens data.train for sequences of model.seq_len.
  // Errors: as TokenFiles::Open; INVALID_ARGUMENT if an epoch has less than one
  // whole microbatch for each of `data_ranks`, with the tokens needed and
  // found.
  static absl::StatusOr<std::unique_ptr<TokenSource>> OpenTraining(
      const JobSpec& spec, int64_t data_ranks);

  // Opens data.validation for sequences of eval.seq_len.
  // Errors: as TokenFiles::Open; INVALID_ARGUMENT if there is not one sequence.
  static absl::StatusOr<std::unique_ptr<TokenSource>> OpenEvaluation(
      const JobSpec& spec);

  // Training: sequences of one epoch. Evaluation: sequences of one evaluation.
  int64_t num_sequences() const { return num_sequences_; }
  // Targets that count in one epoch or evaluation.
  int64_t num_targets() const { return num_sequences_ * files_->seq_len(); }
  const TokenFiles& files() const { return *files_; }

  absl::Status Fill(int64_t first_sequence, std::span<int32_t> tokens,
                    std::span<int32_t> targets) override;

 private:
  TokenSource(std::unique_ptr<TokenFiles> files, SequenceOrder order,
              int64_t num_sequences, bool endless);

  std::unique_ptr<TokenFiles> files_;
  SequenceOrder order_;
  int64_t num_sequences_;
  bool endless_;
};

// One thing that is wrong with a job's data.
struct DataProblem {
  std::string field;  // "data.train"
  std::string value;  // as in the spec
  absl::Status status;
};

struct DataCheck {
  TokenCounts train;
  TokenCounts validation;  // zeros without data.validation
  // Both fields are looked at, whatever the other's state; empty: all is well.
  std::vector<DataProblem> problems;
};

// Looks at a job's data as its worker will: opens, checks, counts. For the
// coordinator at submit; needs no device and starts no thread.
DataCheck CheckDataFiles(const JobSpec& spec, int64_t data_ranks);

}  // namespace ebb
