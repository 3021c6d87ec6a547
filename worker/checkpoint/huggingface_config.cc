// Fields by family. Where a config.json leaves a field out, its library's
// default holds; sizes have none.
#include "worker/checkpoint/huggingface_config.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

const char* NormName(Norm norm) {
  return norm == Norm::kLayerNorm ? "layernorm" : "rmsnorm";
}
const char* ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return "gelu";
    case Activation::kRelu:
      return "relu";
    case Activation::kSwiglu:
      return "swiglu";
  }
  return "?";
}
const char* PositionsName(Positions positions) {
  return positions == Positions::kLearned ? "learned" : "rope";
}
const char* BoolName(bool value) { return value ? "true" : "false"; }

// A value of a config as it may stand in a message.
std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  constexpr size_t kMost = 80;
  if (text.size() > kMost) text = absl::StrCat(text.substr(0, kMost), "...");
  return text;
}

// Compares fields of a config with fields of a model and gathers what differs.
class Comparison {
 public:
  Comparison(const Json& config, std::vector<std::string>* differences)
      : config_(config), differences_(differences) {}

  // Null where there is none, or it is null.
  const Json* Find(const char* name) const {
    const auto found = config_.find(name);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }

  void Add(std::string text) { differences_->push_back(std::move(text)); }
  std::vector<std::string>& differences() { return *differences_; }

  // A size that must be the model's.
  void Size(const char* name, const char* field, int64_t want,
            std::optional<int64_t> otherwise = std::nullopt) {
    const std::optional<int64_t> value = Int(name, otherwise);
    if (value && *value != want) {
      Add(absl::StrCat(name, " is ", *value, " but ", field, " is ", want));
    }
  }

  // A size that must be at least the model's.
  void AtLeast(const char* name, const char* field, int64_t want,
               int64_t otherwise) {
    const std::optional<int64_t> value = Int(name, otherwise);
    if (value && *value < want) {
      Add(absl::StrCat(name, " is ", *value, " but ", field, " is ", want));
    }
  }

  // Compared as the fp32 numbers that kernels see.
  void Real(const char* name, const char* field, double want,
            double otherwise) {
    const Json* const member = Find(name);
    if (member != nullptr && !member->is_number()) {
      Add(absl::StrCat(name, " is ", Shown(*member), ", which is no number"));
      return;
    }
    const double value = member == nullptr ? otherwise : member->get<double>();
    if (static_cast<float>(value) != static_cast<float>(want)) {
      Add(absl::StrCat(name, " is ", value, " but ", field, " is ", want));
    }
  }

  void Flag(const char* name, const char* field, bool want, bool otherwise) {
    const std::optional<bool> value = Bool(name, otherwise);
    if (value && *value != want) {
      Add(absl::StrCat(name, " is ", BoolName(*value), " but ", field, " is ",
                       BoolName(want)));
    }
  }

  // A flag that Ebb knows one value of.
  void Fixed(const char* name, bool want) {
    const std::optional<bool> value = Bool(name, want);
    if (value && *value != want) {
      Add(absl::StrCat(name, " is ", BoolName(*value), " but Ebb has only ",
                       BoolName(want)));
    }
  }

  // One of the names that the model's choice has there.
  void Choice(const char* name, const char* field, const char* want,
              std::vector<absl::string_view> names,
              absl::string_view otherwise) {
    const Json* const member = Find(name);
    if (member != nullptr && !member->is_string()) {
      Add(absl::StrCat(name, " is ", Shown(*member), ", which is no text"));
      return;
    }
    const std::string value =
        member == nullptr ? std::string(otherwise) : member->get<std::string>();
    if (std::find(names.begin(), names.end(), value) == names.end()) {
      Add(absl::StrCat(
          name, " is ", Shown(value), " but ", field, " is ", want,
          names.empty()
              ? ""
              : absl::StrCat(", there ", absl::StrJoin(names, " or "))));
    }
  }

  // What the family is, and the model must be.
  void Family(const char* family, const char* field, const char* want,
              const char* found) {
    if (absl::string_view(want) != found) {
      Add(absl::StrCat("model_type ", family, " means ", field, " ", want,
                       " but it is ", found));
    }
  }

 private:
  std::optional<int64_t> Int(const char* name,
                             std::optional<int64_t> otherwise) {
    const Json* const member = Find(name);
    if (member == nullptr) {
      if (!otherwise) Add(absl::StrCat(name, " is missing"));
      return otherwise;
    }
    if (!member->is_number_integer() || *member < 0 ||
        *member > (int64_t{1} << 53)) {
      Add(absl::StrCat(name, " is ", Shown(*member), ", which is no size"));
      return std::nullopt;
    }
    return member->get<int64_t>();
  }

  std::optional<bool> Bool(const char* name, bool otherwise) {
    const Json* const member = Find(name);
    if (member == nullptr) return otherwise;
    if (!member->is_boolean()) {
      Add(absl::StrCat(name, " is ", Shown(*member),
                       ", which is not true or false"));
      return std::nullopt;
    }
    return member->get<bool>();
  }

  const Json& config_;
  std::vector<std::string>* differences_;
};

// The names that GPT-2's config has for an activation, the one to write first;
// none: it has no such activation. Ebb's gelu is the tanh form.
std::vector<absl::string_view> Gpt2Activations(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return {"gelu_new", "gelu_pytorch_tanh"};
    case Activation::kRelu:
      return {"relu"};
    case Activation::kSwiglu:
      return {};
  }
  return {};
}

void CompareGpt2(Comparison& c, const ModelSpec& model) {
  c.Size("n_layer", "model.layers", model.layers);
  c.Size("n_embd", "model.hidden", model.hidden);
  c.Size("n_head", "model.heads", model.heads);
  c.Size("vocab_size", "model.vocab", model.vocab);
  c.Size("n_positions", "model.seq_len", model.seq_len);
  c.Size("n_inner", "model.ffn", model.ffn, 4 * model.hidden);
  c.Real("layer_norm_epsilon", "model.norm_eps", model.norm_eps, 1e-5);
  c.Choice("activation_function", "model.activation",
           ActivationName(model.activation), Gpt2Activations(model.activation),
           "gelu_new");
  c.Flag("tie_word_embeddings", "model.tied_embeddings", model.tied_embeddings,
         true);
  c.Family("gpt2", "model.norm", "layernorm", NormName(model.norm));
  c.Family("gpt2", "model.positions", "learned",
           PositionsName(model.positions));
  c.Family("gpt2", "model.bias", "true", BoolName(model.bias));
  if (model.kv_heads != model.heads) {
    c.Add(absl::StrCat("model_type gpt2 has a key and value head for each of ",
                       model.heads, " heads, model.kv_heads is ",
                       model.kv_heads));
  }
  c.Fixed("scale_attn_weights", true);
  c.Fixed("scale_attn_by_inverse_layer_idx", false);
  c.Fixed("add_cross_attention", false);
}

// rope_theta, or in newer files rope_parameters.rope_theta; every form of
// scaling but none is another model.
void CompareRope(Comparison& c, const ModelSpec& model) {
  const Json none = Json::object();
  bool nested = false;
  for (const char* const name : {"rope_scaling", "rope_parameters"}) {
    const Json* const member = c.Find(name);
    if (member == nullptr) continue;
    Comparison rope(member->is_object() ? *member : none, &c.differences());
    if (!member->is_object()) {
      c.Add(absl::StrCat(name, " is ", Shown(*member), ", which is no object"));
      continue;
    }
    for (const char* const kind : {"rope_type", "type"}) {
      const Json* const type = rope.Find(kind);
      if (type != nullptr && *type != "default") {
        c.Add(absl::StrCat(name, ".", kind, " is ", Shown(*type),
                           " but Ebb's rope has no scaling"));
      }
    }
    if (rope.Find("rope_type") == nullptr && rope.Find("type") == nullptr &&
        rope.Find("factor") != nullptr) {
      c.Add(absl::StrCat(name, " is ", Shown(*member),
                         " but Ebb's rope has no scaling"));
    }
    if (rope.Find("rope_theta") != nullptr) {
      rope.Real("rope_theta", "model.rope_theta", model.rope_theta, 0);
      nested = true;
    }
  }
  if (!nested || c.Find("rope_theta") != nullptr) {
    c.Real("rope_theta", "model.rope_theta", model.rope_theta, 10000);
  }
}

void CompareLlama(Comparison& c, const ModelSpec& model) {
  c.Size("num_hidden_layers", "model.layers", model.layers);
  c.Size("hidden_size", "model.hidden", model.hidden);
  c.Size("num_attention_heads", "model.heads", model.heads);
  c.Size("num_key_value_heads", "model.kv_heads", model.kv_heads, model.heads);
  c.Size("head_dim", "model.hidden / model.heads", model.hidden / model.heads,
         model.hidden / model.heads);
  c.Size("intermediate_size", "model.ffn", model.ffn);
  c.Size("vocab_size", "model.vocab", model.vocab);
  // Positions are computed, none are stored: a shorter seq_len is fine.
  c.AtLeast("max_position_embeddings", "model.seq_len", model.seq_len, 2048);
  c.Real("rms_norm_eps", "model.norm_eps", model.norm_eps, 1e-6);
  std::vector<absl::string_view> names;
  if (model.activation == Activation::kSwiglu) names = {"silu", "swish"};
  c.Choice("hidden_act", "model.activation", ActivationName(model.activation),
           names, "silu");
  c.Flag("tie_word_embeddings", "model.tied_embeddings", model.tied_embeddings,
         false);
  c.Flag("attention_bias", "model.bias", model.bias, false);
  c.Flag("mlp_bias", "model.bias", model.bias, false);
  c.Family("llama", "model.norm", "rmsnorm", NormName(model.norm));
  c.Family("llama", "model.positions", "rope", PositionsName(model.positions));
  if (model.positions == Positions::kRope) CompareRope(c, model);
}

// What of a model the files of a family cannot say.
std::vector<std::string> NotInGpt2(const ModelSpec& model) {
  std::vector<std::string> without;
  if (model.norm != Norm::kLayerNorm) {
    without.push_back(absl::StrCat("model.norm ", NormName(model.norm)));
  }
  if (Gpt2Activations(model.activation).empty()) {
    without.push_back(
        absl::StrCat("model.activation ", ActivationName(model.activation)));
  }
  if (model.positions != Positions::kLearned) {
    without.push_back(
        absl::StrCat("model.positions ", PositionsName(model.positions)));
  }
  if (!model.bias) without.push_back("model.bias false");
  if (model.kv_heads != model.heads) {
    without.push_back(absl::StrCat("model.kv_heads ", model.kv_heads, " of ",
                                   model.heads, " heads"));
  }
  return without;
}

std::vector<std::string> NotInLlama(const ModelSpec& model) {
  std::vector<std::string> without;
  if (model.norm != Norm::kRmsNorm) {
    without.push_back(absl::StrCat("model.norm ", NormName(model.norm)));
  }
  if (model.activation != Activation::kSwiglu) {
    without.push_back(
        absl::StrCat("model.activation ", ActivationName(model.activation)));
  }
  if (model.positions != Positions::kRope) {
    without.push_back(
        absl::StrCat("model.positions ", PositionsName(model.positions)));
  }
  return without;
}

void FillGpt2(const ModelSpec& model, nlohmann::ordered_json& config) {
  config["n_layer"] = model.layers;
  config["n_embd"] = model.hidden;
  config["n_head"] = model.heads;
  config["n_positions"] = model.seq_len;
  config["n_inner"] = model.ffn;
  config["activation_function"] =
      std::string(Gpt2Activations(model.activation).front());
  config["layer_norm_epsilon"] = model.norm_eps;
  for (const char* const dropout :
       {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    config[dropout] = model.dropout;
  }
}

void FillLlama(const ModelSpec& model, nlohmann::ordered_json& config) {
  config["num_hidden_layers"] = model.layers;
  config["hidden_size"] = model.hidden;
  config["num_attention_heads"] = model.heads;
  config["num_key_value_heads"] = model.kv_heads;
  config["head_dim"] = model.hidden / model.heads;
  config["intermediate_size"] = model.ffn;
  config["max_position_embeddings"] = model.seq_len;
  config["hidden_act"] = "silu";
  config["rms_norm_eps"] = model.norm_eps;
  config["rope_theta"] = model.rope_theta;
  config["rope_scaling"] = nullptr;
  config["attention_bias"] = model.bias;
  config["mlp_bias"] = model.bias;
  config["attention_dropout"] = model.dropout;
}

}  // namespace

absl::StatusOr<HuggingFaceFamily> FamilyOfConfig(const Json& config) {
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) {
    return absl::DataLossError("model_type is missing");
  }
  std::vector<absl::string_view> known;
  for (const HuggingFaceTable& table : HuggingFaceTables()) {
    if (*type == table.model_type) return table.family;
    known.push_back(table.model_type);
  }
  return absl::UnimplementedError(absl::StrCat("model_type is ", Shown(*type),
                                               ": Ebb reads ",
                                               absl::StrJoin(known, " and ")));
}

std::vector<std::string> CompareConfig(const Json& config,
                                       HuggingFaceFamily family,
                                       const ModelSpec& model) {
  std::vector<std::string> differences;
  Comparison comparison(config, &differences);
  switch (family) {
    case HuggingFaceFamily::kGpt2:
      CompareGpt2(comparison, model);
      break;
    case HuggingFaceFamily::kLlama:
      CompareLlama(comparison, model);
      break;
  }
  return differences;
}

absl::StatusOr<HuggingFaceFamily> FamilyOfModel(const ModelSpec& model) {
  const std::vector<std::string> not_gpt2 = NotInGpt2(model);
  if (not_gpt2.empty()) return HuggingFaceFamily::kGpt2;
  const std::vector<std::string> not_llama = NotInLlama(model);
  if (not_llama.empty()) return HuggingFaceFamily::kLlama;
  return absl::UnimplementedError(
      absl::StrCat("no Hugging Face files hold such a model: gpt2 has no ",
                   absl::StrJoin(not_gpt2, ", no "), "; llama has no ",
                   absl::StrJoin(not_llama, ", no ")));
}

nlohmann::ordered_json MakeConfig(HuggingFaceFamily family,
                                  const ModelSpec& model) {
  const HuggingFaceTable& table = TableOf(family);
  nlohmann::ordered_json config;
  config["architectures"] = {table.architecture};
  config["model_type"] = table.model_type;
  config["torch_dtype"] = "float32";
  config["vocab_size"] = model.vocab;
  config["tie_word_embeddings"] = model.tied_embeddings;
  switch (family) {
    case HuggingFaceFamily::kGpt2:
      FillGpt2(model, config);
      break;
    case HuggingFaceFamily::kLlama:
      FillLlama(model, config);
      break;
  }
  return config;
}

}  // namespace ebb
