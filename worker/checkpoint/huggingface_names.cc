// The tables, and names of one layer.
#include "worker/checkpoint/huggingface_names.h"

#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "kernels/status.h"

namespace ebb {
namespace {

constexpr auto kAll = HuggingFaceRows::kAll;
constexpr auto kHidden = HuggingFaceRows::kHidden;
constexpr auto kKeyValue = HuggingFaceRows::kKeyValue;
constexpr auto kFfn = HuggingFaceRows::kFfn;

constexpr HuggingFaceRow kGpt2Rows[] = {
    {"embedding.weight", false, {{"transformer.wte.weight"}}},
    {"position_embedding.weight", false, {{"transformer.wpe.weight"}}},
    {"L*.attention_norm.gain", false, {{"transformer.h.*.ln_1.weight"}}},
    {"L*.attention_norm.bias", false, {{"transformer.h.*.ln_1.bias"}}},
    {"L*.qkv.weight", true, {{"transformer.h.*.attn.c_attn.weight"}}},
    {"L*.qkv.bias", false, {{"transformer.h.*.attn.c_attn.bias"}}},
    {"L*.attention_out.weight", true, {{"transformer.h.*.attn.c_proj.weight"}}},
    {"L*.attention_out.bias", false, {{"transformer.h.*.attn.c_proj.bias"}}},
    {"L*.mlp_norm.gain", false, {{"transformer.h.*.ln_2.weight"}}},
    {"L*.mlp_norm.bias", false, {{"transformer.h.*.ln_2.bias"}}},
    {"L*.mlp.fc.weight", true, {{"transformer.h.*.mlp.c_fc.weight"}}},
    {"L*.mlp.fc.bias", false, {{"transformer.h.*.mlp.c_fc.bias"}}},
    {"L*.mlp.out.weight", true, {{"transformer.h.*.mlp.c_proj.weight"}}},
    {"L*.mlp.out.bias", false, {{"transformer.h.*.mlp.c_proj.bias"}}},
    {"final_norm.gain", false, {{"transformer.ln_f.weight"}}},
    {"final_norm.bias", false, {{"transformer.ln_f.bias"}}},
    {"head.weight", false, {{"lm_head.weight"}}},
};
// The causal mask and its fill value.
constexpr const char* kGpt2Buffers[] = {"h.*.attn.bias",
                                        "h.*.attn.masked_bias"};

constexpr HuggingFaceRow kLlamaRows[] = {
    {"embedding.weight", false, {{"model.embed_tokens.weight"}}},
    {"L*.attention_norm.gain",
     false,
     {{"model.layers.*.input_layernorm.weight"}}},
    {"L*.qkv.weight",
     false,
     {{"model.layers.*.self_attn.q_proj.weight", kHidden},
      {"model.layers.*.self_attn.k_proj.weight", kKeyValue},
      {"model.layers.*.self_attn.v_proj.weight", kKeyValue}}},
    {"L*.qkv.bias",
     false,
     {{"model.layers.*.self_attn.q_proj.bias", kHidden},
      {"model.layers.*.self_attn.k_proj.bias", kKeyValue},
      {"model.layers.*.self_attn.v_proj.bias", kKeyValue}}},
    {"L*.attention_out.weight",
     false,
     {{"model.layers.*.self_attn.o_proj.weight"}}},
    {"L*.attention_out.bias",
     false,
     {{"model.layers.*.self_attn.o_proj.bias"}}},
    {"L*.mlp_norm.gain",
     false,
     {{"model.layers.*.post_attention_layernorm.weight"}}},
    {"L*.mlp.fc.weight",
     false,
     {{"model.layers.*.mlp.gate_proj.weight", kFfn},
      {"model.layers.*.mlp.up_proj.weight", kFfn}}},
    {"L*.mlp.fc.bias",
     false,
     {{"model.layers.*.mlp.gate_proj.bias", kFfn},
      {"model.layers.*.mlp.up_proj.bias", kFfn}}},
    {"L*.mlp.out.weight", false, {{"model.layers.*.mlp.down_proj.weight"}}},
    {"L*.mlp.out.bias", false, {{"model.layers.*.mlp.down_proj.bias"}}},
    {"final_norm.gain", false, {{"model.norm.weight"}}},
    {"head.weight", false, {{"lm_head.weight"}}},
};
// The angles of rotary positions.
constexpr const char* kLlamaBuffers[] = {
    "layers.*.self_attn.rotary_emb.inv_freq"};

constexpr HuggingFaceTable kTables[] = {
    {HuggingFaceFamily::kGpt2, "gpt2", "GPT2LMHeadModel", "transformer.",
     "lm_head.weight", kGpt2Rows, kGpt2Buffers},
    {HuggingFaceFamily::kLlama, "llama", "LlamaForCausalLM", "model.",
     "lm_head.weight", kLlamaRows, kLlamaBuffers},
};

// "L3.qkv.weight" -> ("L*.qkv.weight", 3); other names with layer -1.
std::pair<std::string, int> StarName(absl::string_view name) {
  absl::string_view rest = name;
  const size_t dot = name.find('.');
  int layer = -1;
  if (absl::ConsumePrefix(&rest, "L") && dot != absl::string_view::npos &&
      absl::SimpleAtoi(name.substr(1, dot - 1), &layer) && layer >= 0) {
    return {absl::StrCat("L*", name.substr(dot)), layer};
  }
  return {std::string(name), -1};
}

int64_t RowsOf(HuggingFaceRows rows, const ModelSpec& model, int64_t all) {
  switch (rows) {
    case kAll:
      return all;
    case kHidden:
      return model.hidden;
    case kKeyValue:
      return model.hidden / model.heads * model.kv_heads;
    case kFfn:
      return model.ffn;
  }
  return all;
}

// Whether a name is the pattern with a number for its star.
bool IsOfPattern(absl::string_view name, absl::string_view pattern) {
  const size_t star = pattern.find('*');
  if (!absl::ConsumePrefix(&name, pattern.substr(0, star)) ||
      !absl::ConsumeSuffix(&name, pattern.substr(star + 1))) {
    return false;
  }
  return !name.empty() &&
         name.find_first_not_of("0123456789") == absl::string_view::npos;
}

}  // namespace

absl::Span<const HuggingFaceTable> HuggingFaceTables() { return kTables; }

const HuggingFaceTable& TableOf(HuggingFaceFamily family) {
  return kTables[static_cast<int>(family)];
}

absl::StatusOr<std::vector<HuggingFaceTensor>> HuggingFaceTensorsOf(
    HuggingFaceFamily family, const ModelSpec& model,
    absl::string_view parameter, const TensorType& type) {
  const auto [star_name, layer] = StarName(parameter);
  for (const HuggingFaceRow& row : TableOf(family).rows) {
    if (star_name != row.parameter) continue;
    std::vector<HuggingFaceTensor> tensors;
    int64_t first_row = 0;
    for (const HuggingFacePart& part : row.parts) {
      if (part.name == nullptr) break;
      HuggingFaceTensor tensor;
      tensor.name =
          absl::StrReplaceAll(part.name, {{"*", absl::StrCat(layer)}});
      tensor.transposed = row.transposed;
      tensor.first_row = first_row;
      tensor.rows = RowsOf(part.rows, model, type.dims[0]);
      if (type.rank == 1) {
        tensor.shape = {tensor.rows};
      } else if (row.transposed) {
        tensor.shape = {type.dims[1], tensor.rows};
      } else {
        tensor.shape = {tensor.rows, type.dims[1]};
      }
      first_row += tensor.rows;
      tensors.push_back(std::move(tensor));
    }
    EBB_CHECK(type.rank <= 2);
    if (first_row != type.dims[0]) break;  // of a model of the other family
    return tensors;
  }
  return absl::UnimplementedError(absl::StrCat(
      "files of ", TableOf(family).model_type, " models have nothing for ",
      parameter, " of ", type.dims[0], " rows"));
}

std::string WithoutPrefix(const HuggingFaceTable& table,
                          absl::string_view name) {
  return std::string(absl::StripPrefix(name, table.prefix));
}

bool IsHuggingFaceBuffer(const HuggingFaceTable& table,
                         absl::string_view name) {
  const absl::string_view bare = absl::StripPrefix(name, table.prefix);
  for (const char* const pattern : table.buffers) {
    if (IsOfPattern(bare, pattern)) return true;
  }
  return false;
}

}  // namespace ebb
