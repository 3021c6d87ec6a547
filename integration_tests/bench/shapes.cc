// Sizes of the bench's models.
#include "integration_tests/bench/shapes.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "proto/convert.h"
#include "proto/effective_spec.h"
#include "proto/spec_reader.h"

namespace ebb::bench {

std::vector<std::string> ShapeNames() {
  return {"gpt2-124m", "llama", "small"};
}

JobSpec MakeJob(const std::string& name, DType precision, int threads) {
  JobSpec spec;
  spec.name = name;
  spec.precision = precision;
  spec.threads = threads;
  spec.global_batch = 8;
  spec.micro_batch = 2;
  spec.steps = 1;
  spec.memory.host_budget_bytes = int64_t{1} << 50;
  ModelSpec& model = spec.model;
  if (name == "small") {
    model.layers = 4;
    model.hidden = 256;
    model.heads = model.kv_heads = 4;
    model.ffn = 1024;
    model.vocab = 4096;
    model.seq_len = 256;
  } else {
    EBB_CHECK(name == "gpt2-124m" || name == "llama");
    model.layers = 12;
    model.hidden = 768;
    model.heads = model.kv_heads = 12;
    model.ffn = 3072;
    model.vocab = 50257;
    model.seq_len = 512;
  }
  if (name == "llama") {
    model.kv_heads = 4;
    model.ffn = 2048;
    model.vocab = 32000;
    model.norm = Norm::kRmsNorm;
    model.activation = Activation::kSwiglu;
    model.positions = Positions::kRope;
    model.bias = false;
    model.tied_embeddings = false;
  }
  spec.eval.micro = spec.micro_batch;
  spec.eval.seq_len = model.seq_len;
  return spec;
}

absl::StatusOr<JobSpec> ReadJob(const std::string& path, int threads) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot be read: ", path));
  }
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EBB_ASSIGN_OR_RETURN(v1::JobSpec message,
                       ReadSpec(text, path, {}, {.file = "/", .sets = "/"}));
  message.mutable_resources()->set_threads(threads);
  constexpr int64_t kUnlimited = int64_t{1} << 50;
  EBB_ASSIGN_OR_RETURN(
      message, EffectiveSpec(message, {.threads = threads,
                                       .budget_bytes = kUnlimited,
                                       .host_budget_bytes = kUnlimited}));
  return JobSpecFromMessage(message);
}

}  // namespace ebb::bench
