// config.json of a Hugging Face directory against the model of a job spec, and
// the config.json of a model. Fields that do not change what a model computes
// (dropout, initialisation, token ids, generation) are not looked at.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/huggingface_names.h"
#include "worker/model/job_spec.h"

namespace ebb {

// The family that a config.json names.
// Errors: UNIMPLEMENTED for another, DATA_LOSS where it names none.
absl::StatusOr<HuggingFaceFamily> FamilyOfConfig(const nlohmann::json& config);

// Every way in which the config is not the model's, with both values:
// "n_layer is 12, model.layers is 4". Empty: they agree.
std::vector<std::string> CompareConfig(const nlohmann::json& config,
                                       HuggingFaceFamily family,
                                       const ModelSpec& model);

// The family whose files can hold the model.
// Errors: UNIMPLEMENTED with every field that no family has.
absl::StatusOr<HuggingFaceFamily> FamilyOfModel(const ModelSpec& model);

// REQUIRES: the model is of the family.
nlohmann::ordered_json MakeConfig(HuggingFaceFamily family,
                                  const ModelSpec& model);

}  // namespace ebb
