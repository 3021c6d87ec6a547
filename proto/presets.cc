#include "proto/presets.h"

namespace ebb {

namespace {

enum class Family { kGpt2, kGpt3, kLlama };

struct Preset {
  const char* name;
  Family family;
  int layers, hidden, heads, vocab, seq_len;
  int kv_heads = 0, ffn = 0;  // 0: the default
};

// tiny-*, llama-tiny-*: bytes as tokens, for two cores. gpt2-*: Radford et al.
// 2019, table 2, with the parameter counts of the published weights. llama-3-*:
// Grattafiori et al. 2024, table 3. gpt-22b to gpt-1t: Korthikanti et al. 2022,
// table 3, with the dropout and unfused attention that they count. llama-125m:
// GPT-2's smallest shape with Llama's parts and the vocabulary of Touvron et
// al. 2023.
constexpr Preset kPresets[] = {
    {"tiny-120k", Family::kGpt2, 2, 64, 4, 257, 128},
    {"tiny-2m", Family::kGpt2, 4, 192, 6, 257, 256},
    {"tiny-11m", Family::kGpt2, 6, 384, 6, 257, 256},
    {"gpt2-124m", Family::kGpt2, 12, 768, 12, 50257, 1024},
    {"gpt2-355m", Family::kGpt2, 24, 1024, 16, 50257, 1024},
    {"gpt2-774m", Family::kGpt2, 36, 1280, 20, 50257, 1024},
    {"gpt2-1.5b", Family::kGpt2, 48, 1600, 25, 50257, 1024},
    {"gpt-22b", Family::kGpt3, 48, 6144, 64, 51200, 2048},
    {"gpt3-175b", Family::kGpt3, 96, 12288, 96, 51200, 2048},
    {"mt-nlg-530b", Family::kGpt3, 105, 20480, 128, 51200, 2048},
    {"gpt-1t", Family::kGpt3, 128, 25600, 160, 51200, 2048},
    {"llama-tiny-2m", Family::kLlama, 4, 192, 6, 257, 256, 2},
    {"llama-tiny-10m", Family::kLlama, 6, 384, 6, 257, 256, 2},
    {"llama-125m", Family::kLlama, 12, 768, 12, 32000, 1024, 4},
    {"llama-3-8b", Family::kLlama, 32, 4096, 32, 128256, 8192, 8, 14336},
    {"llama-3-70b", Family::kLlama, 80, 8192, 64, 128256, 8192, 8, 28672},
    {"llama-3-405b", Family::kLlama, 126, 16384, 128, 128256, 8192, 8, 53248},
};

v1::ModelSpec MakeSpec(const Preset& preset) {
  v1::ModelSpec spec;
  spec.set_layers(preset.layers);
  spec.set_hidden(preset.hidden);
  spec.set_heads(preset.heads);
  spec.set_vocab(preset.vocab);
  spec.set_seq_len(preset.seq_len);
  if (preset.kv_heads > 0) spec.set_kv_heads(preset.kv_heads);
  if (preset.ffn > 0) spec.set_ffn(preset.ffn);
  if (preset.family == Family::kGpt3) {
    spec.set_attention(v1::ATTENTION_UNFUSED);
    spec.set_dropout(0.1);
  }
  if (preset.family == Family::kLlama) {
    spec.set_norm(v1::NORM_RMSNORM);
    spec.set_activation(v1::ACTIVATION_SWIGLU);
    spec.set_positions(v1::POSITIONS_ROPE);
    spec.set_rope_theta(500000);
    spec.set_bias(false);
    spec.set_tied_embeddings(false);
  }
  return spec;
}

std::vector<v1::ModelSpec> MakeSpecs() {
  std::vector<v1::ModelSpec> specs;
  for (const Preset& preset : kPresets) specs.push_back(MakeSpec(preset));
  return specs;
}

}  // namespace

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

const v1::ModelSpec* FindPreset(absl::string_view name) {
  static const auto& specs = *new std::vector<v1::ModelSpec>(MakeSpecs());
  for (size_t i = 0; i < std::size(kPresets); ++i) {
    if (name == kPresets[i].name) return &specs[i];
  }
  return nullptr;
}

}  // namespace ebb
