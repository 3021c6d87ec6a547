// From a checkpoint's manifest to its spec, from there to a sampler.
#include "worker/sampling.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/device.h"
#include "kernels/status.h"
#include "worker/data/token_files.h"
#include "worker/job_checkpoint.h"
#include "worker/runtime/sampler.h"

namespace ebb {
namespace {

// Whether the model's tokens are bytes of text.
absl::Status CheckText(const JobSpec& spec) {
  DataFormat format = spec.data.format;
  if (format == DataFormat::kAuto) {
    const auto files = TokenFiles::Open("data.train", spec.data.train, format,
                                        spec.model.vocab, spec.model.seq_len);
    if (!files.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "whether the job was trained on text cannot be told from its data "
          "(data.format is auto); give token ids instead: ",
          files.status().message()));
    }
    format = (*files)->format();
  }
  if (format == DataFormat::kText) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the job was trained on token ids, not on text: give token ids instead "
      "(--prompt-tokens)");
}

absl::StatusOr<std::vector<int32_t>> ParseIds(const std::string& prompt,
                                              int64_t vocab) {
  std::vector<int32_t> ids;
  for (const absl::string_view word :
       absl::StrSplit(prompt, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(word, &id) || id < 0 || id >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("the prompt has ", word.substr(0, 32),
                       ": must be ids from 0 to ", vocab - 1));
    }
    ids.push_back(id);
  }
  if (ids.empty()) return absl::InvalidArgumentError("the prompt has no ids");
  return ids;
}

// Without a prompt a new file begins, after the end of another one.
std::vector<int32_t> BytesOf(const std::string& prompt) {
  std::vector<int32_t> ids;
  if (prompt.empty()) ids.push_back(kEndOfText);
  for (const char byte : prompt) ids.push_back(static_cast<uint8_t>(byte));
  return ids;
}

struct OpenedSampler {
  JobCheckpoint checkpoint;
  std::vector<int32_t> context;
  std::unique_ptr<Sampler> sampler;
};

absl::StatusOr<OpenedSampler> OpenSampler(const SamplingOptions& options,
                                          const std::string& prompt) {
  OpenedSampler opened;
  EBB_ASSIGN_OR_RETURN(opened.checkpoint,
                       OpenJobCheckpoint(options.checkpoints, options.step));
  const JobSpec& spec = opened.checkpoint.spec;
  if (options.ids) {
    EBB_ASSIGN_OR_RETURN(opened.context, ParseIds(prompt, spec.model.vocab));
  } else {
    EBB_RETURN_IF_ERROR(CheckText(spec));
    opened.context = BytesOf(prompt);
  }
  EBB_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                       MakeCpuDevice(DescribeCpu(spec.threads)));
  EBB_ASSIGN_OR_RETURN(
      opened.sampler,
      Sampler::Create(
          spec, std::move(device), opened.checkpoint.reader,
          static_cast<int64_t>(opened.context.size()) + options.num_tokens));
  return opened;
}

}  // namespace

absl::Status Sample(const SamplingOptions& options, const std::string& prompt,
                    const std::function<bool(absl::string_view)>& write) {
  absl::StatusOr<OpenedSampler> opened = OpenSampler(options, prompt);
  if (!opened.ok()) return opened.status();
  const auto gone = [] { return absl::CancelledError("nobody reads"); };
  if (!write(absl::StrCat(opened->checkpoint.reader.meta().step, "\n")))
    return gone();
  std::vector<int32_t>& context = opened->context;
  for (int64_t n = 0; n < options.num_tokens; ++n) {
    EBB_ASSIGN_OR_RETURN(std::span<const float> logits,
                         opened->sampler->Logits(context));
    // A vocabulary may be larger than text needs: those ids were never trained.
    if (!options.ids) logits = logits.first(kTextVocab);
    const int32_t token =
        ChooseToken(logits, options.settings, static_cast<uint64_t>(n));
    if (token < 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the model gives no finite logits: its weights are broken: step ",
          opened->checkpoint.reader.meta().step));
    }
    if (!options.ids && token == kEndOfText) return absl::OkStatus();
    context.push_back(token);
    const char byte = static_cast<char>(token);
    if (!write(options.ids ? absl::StrCat(token, "\n")
                           : std::string(1, byte))) {
      return gone();
    }
  }
  return absl::OkStatus();
}

}  // namespace ebb
