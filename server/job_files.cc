#include "server/job_files.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/status.h"
#include "proto/convert.h"
#include "proto/effective_spec.h"
#include "server/offload_directory.h"
#include "worker/checkpoint/initial_weights.h"
#include "worker/data/token_source.h"
#include "worker/model/graph.h"
#include "worker/program/job_programs.h"

namespace ebb {
namespace {

// As large as model.vocab may be: no token id is beyond it.
constexpr int32_t kLargestVocab = 16777216;

// Fields with a mistake.
class WrongFields {
 public:
  explicit WrongFields(const std::vector<v1::Violation>& violations)
      : violations_(violations) {}

  // The field, a section around it or, of a section, anything in it.
  bool Have(absl::string_view path) const {
    return std::any_of(
        violations_.begin(), violations_.end(), [&](const auto& violation) {
          const absl::string_view field = violation.field();
          return field == path ||
                 absl::StartsWith(field, absl::StrCat(path, ".")) ||
                 (!field.empty() &&
                  absl::StartsWith(path, absl::StrCat(field, ".")));
        });
  }

  bool HaveAny(std::initializer_list<absl::string_view> paths) const {
    return std::any_of(paths.begin(), paths.end(),
                       [&](absl::string_view path) { return Have(path); });
  }

 private:
  const std::vector<v1::Violation>& violations_;
};

// A spec without mistakes that has of `full` what is right and decides how
// files are read; in place of what is wrong it has what asks least of them.
v1::JobSpec SpecForFiles(const v1::JobSpec& full, const WrongFields& wrong) {
  v1::JobSpec spec;
  spec.set_steps(1);
  *spec.mutable_data() = full.data();
  if (wrong.Have("data.train")) spec.mutable_data()->set_train("/");
  if (wrong.Have("data.validation")) spec.mutable_data()->clear_validation();
  if (wrong.Have("data.format")) spec.mutable_data()->clear_format();
  spec.mutable_data()->clear_shuffle();
  if (wrong.HaveAny({"model", "precision"})) {
    v1::ModelSpec* model = spec.mutable_model();
    model->set_layers(1);
    model->set_hidden(2);
    model->set_heads(1);
    model->set_vocab(wrong.HaveAny({"model.vocab", "model.preset"})
                         ? kLargestVocab
                         : full.model().vocab());
    model->set_seq_len(wrong.HaveAny({"model.seq_len", "model.preset"})
                           ? 1
                           : full.model().seq_len());
  } else {
    *spec.mutable_model() = full.model();
    spec.set_precision(full.precision());
  }
  const int32_t micro =
      wrong.Have("batch.micro") ? 1 : std::max(1, full.batch().micro());
  spec.mutable_batch()->set_micro(micro);
  spec.mutable_batch()->set_global(micro);
  if (!wrong.HaveAny({"model.seq_len", "eval.seq_len"})) {
    spec.mutable_eval()->set_seq_len(full.eval().seq_len());
  }
  return WithDefaults(spec);
}

// The weights of the model, one entry a layer.
absl::StatusOr<std::vector<WantedWeight>> WeightsOf(const JobSpec& spec) {
  EBB_ASSIGN_OR_RETURN(const Graph graph, BuildTrainingGraph(spec));
  std::vector<WantedWeight> weights;
  for (const Value& value : graph.values) {
    if (value.kind != ValueKind::kParameter) continue;
    const int count = value.per_layer ? graph.num_layers : 1;
    for (int layer = 0; layer < count; ++layer) {
      // Checkpoints hold the fp32 masters.
      weights.push_back({InstanceName(value.name, layer),
                         value.type.WithDType(DType::kF32), nullptr});
    }
  }
  return weights;
}

absl::Status CheckWeights(const JobSpec& spec, const std::string& directory) {
  EBB_ASSIGN_OR_RETURN(const std::vector<WantedWeight> wanted, WeightsOf(spec));
  return CheckInitialWeights(directory, spec.model, wanted);
}

}  // namespace

JobFiles CheckJobFiles(const v1::JobSpec& full,
                       const std::vector<v1::Violation>& wrong_fields) {
  const WrongFields wrong(wrong_fields);
  JobFiles files;
  const auto add = [&](absl::string_view field, absl::string_view value,
                       const absl::Status& status) {
    // Field and value stand in the violation: once is enough.
    absl::string_view rule = status.message();
    for (const absl::string_view known : {field, value}) {
      if (absl::ConsumeSuffix(&rule, known)) absl::ConsumeSuffix(&rule, ": ");
    }
    v1::Violation& violation = files.violations.emplace_back();
    violation.set_field(std::string(field));
    violation.set_value(std::string(value));
    violation.set_rule(std::string(rule));
    if (absl::IsNotFound(status)) {
      violation.set_fix(
          "check the path: a relative one starts at the spec's folder, in "
          "--set at the working directory");
    }
    files.code = files.violations.size() == 1
                     ? status.code()
                     : absl::StatusCode::kInvalidArgument;
  };
  const absl::StatusOr<JobSpec> spec =
      JobSpecFromMessage(SpecForFiles(full, wrong));
  // Sizes that are fine one by one and not together.
  if (!spec.ok()) return files;
  for (const DataProblem& problem : CheckDataFiles(*spec, 1).problems) {
    // A file that is there may be what the right format asks for.
    const bool counts =
        !wrong.Have("data.format") || absl::IsNotFound(problem.status);
    if (!wrong.Have(problem.field) && counts) {
      add(problem.field, problem.value, problem.status);
    }
  }
  const std::string& offload_dir = full.memory().offload_dir();
  if (!offload_dir.empty() && !wrong.Have("memory.offload_dir")) {
    const absl::Status status = CheckOffloadDirectory(offload_dir);
    if (!status.ok()) add("memory.offload_dir", offload_dir, status);
  }
  const std::string& named = full.checkpoint().init_from();
  if (named.empty() || wrong.Have("checkpoint.init_from")) return files;
  const absl::StatusOr<std::string> found = FindInitialWeights(named);
  absl::Status status = found.status();
  if (found.ok()) {
    files.init_from = *found;
    if (!wrong.HaveAny({"model", "precision"})) {
      status = CheckWeights(*spec, *found);
    }
  }
  if (!status.ok()) add("checkpoint.init_from", named, status);
  return files;
}

}  // namespace ebb
