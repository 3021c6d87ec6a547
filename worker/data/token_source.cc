// Training and evaluation batches from token files.
#include "worker/data/token_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace ebb {
namespace {

// The refusal of data with fewer than `needed` sequences; `reason` says what
// they are needed for.
absl::Status TooFewTokens(const TokenFiles& files, int64_t needed,
                          absl::string_view reason, absl::string_view pattern,
                          absl::string_view field) {
  const TokenCounts& counts = files.counts();
  return absl::InvalidArgumentError(absl::StrCat(
      "too few tokens: need at least ", needed * files.seq_len() + 1, " (",
      needed, " sequences of ", files.seq_len(), " and 1 more: ", reason,
      "), have ", counts.tokens, " in ", counts.files,
      counts.files == 1 ? " file" : " files", ", that is ", counts.sequences,
      " sequences: ", pattern, ": ", field));
}

}  // namespace

int64_t EvalSequences(int64_t batches, int64_t global_batch,
                      int64_t available) {
  return std::min(batches * global_batch, available);
}

TokenSource::TokenSource(std::unique_ptr<TokenFiles> files, SequenceOrder order,
                         int64_t num_sequences, bool endless)
    : files_(std::move(files)),
      order_(order),
      num_sequences_(num_sequences),
      endless_(endless) {}

absl::StatusOr<std::unique_ptr<TokenSource>> TokenSource::OpenTraining(
    const JobSpec& spec, int64_t data_ranks) {
  EBB_ASSIGN_OR_RETURN(
      std::unique_ptr<TokenFiles> files,
      TokenFiles::Open("data.train", spec.data.train, spec.data.format,
                       spec.model.vocab, spec.model.seq_len));
  const int64_t needed = data_ranks * spec.micro_batch;
  if (files->num_sequences() < needed) {
    return TooFewTokens(*files, needed,
                        absl::StrCat("a microbatch of ", spec.micro_batch,
                                     " on each of ", data_ranks, " data ranks"),
                        spec.data.train, "data.train");
  }
  const int64_t num_sequences = files->num_sequences();
  return std::unique_ptr<TokenSource>(new TokenSource(
      std::move(files),
      SequenceOrder(spec.seed, num_sequences, spec.data.shuffle), num_sequences,
      /*endless=*/true));
}

absl::StatusOr<std::unique_ptr<TokenSource>> TokenSource::OpenEvaluation(
    const JobSpec& spec) {
  EBB_ASSIGN_OR_RETURN(
      std::unique_ptr<TokenFiles> files,
      TokenFiles::Open("data.validation", spec.data.validation,
                       spec.data.format, spec.model.vocab, spec.eval.seq_len));
  if (files->num_sequences() < 1) {
    return TooFewTokens(*files, 1, "the shortest evaluation",
                        spec.data.validation, "data.validation");
  }
  const int64_t num_sequences = EvalSequences(
      spec.eval.batches, spec.global_batch, files->num_sequences());
  return std::unique_ptr<TokenSource>(new TokenSource(
      std::move(files),
      SequenceOrder(spec.seed, num_sequences, /*shuffle=*/false), num_sequences,
      /*endless=*/false));
}

absl::Status TokenSource::Fill(int64_t first_sequence,
                               std::span<int32_t> tokens,
                               std::span<int32_t> targets) {
  const int64_t seq_len = files_->seq_len();
  EBB_CHECK(first_sequence >= 0 && tokens.size() == targets.size() &&
            std::ssize(tokens) % seq_len == 0);
  const int64_t count = std::ssize(tokens) / seq_len;
  for (int64_t i = 0; i < count; ++i) {
    const std::span<int32_t> to_tokens = tokens.subspan(i * seq_len, seq_len);
    const std::span<int32_t> to_targets = targets.subspan(i * seq_len, seq_len);
    const int64_t position = first_sequence + i;
    if (!endless_ && position >= num_sequences_) {
      std::fill(to_tokens.begin(), to_tokens.end(), 0);
      std::fill(to_targets.begin(), to_targets.end(), -1);
      continue;
    }
    EBB_RETURN_IF_ERROR(
        files_->Read(order_.At(position), to_tokens, to_targets));
  }
  return absl::OkStatus();
}

DataCheck CheckDataFiles(const JobSpec& spec, int64_t data_ranks) {
  DataCheck check;
  if (auto train = TokenSource::OpenTraining(spec, data_ranks); train.ok()) {
    check.train = (*train)->files().counts();
  } else {
    check.problems.push_back({"data.train", spec.data.train, train.status()});
  }
  if (spec.data.validation.empty()) return check;
  if (auto validation = TokenSource::OpenEvaluation(spec); validation.ok()) {
    check.validation = (*validation)->files().counts();
  } else {
    check.problems.push_back(
        {"data.validation", spec.data.validation, validation.status()});
  }
  return check;
}

}  // namespace ebb
