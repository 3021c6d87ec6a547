#include "proto/presets.h"

namespace ebb {

namespace {

struct Preset {
  const char* name;
  int layers, hidden, heads, vocab, seq_len;
};

// tiny-*: bytes as tokens, for two cores. gpt2-*: Radford et al. 2019, table 2,
// with the parameter counts of the published weights.
constexpr Preset kPresets[] = {
    {"tiny-120k", 2, 64, 4, 257, 128},
    {"tiny-2m", 4, 192, 6, 257, 256},
    {"tiny-11m", 6, 384, 6, 257, 256},
    {"gpt2-124m", 12, 768, 12, 50257, 1024},
    {"gpt2-355m", 24, 1024, 16, 50257, 1024},
    {"gpt2-774m", 36, 1280, 20, 50257, 1024},
    {"gpt2-1.5b", 48, 1600, 25, 50257, 1024},
};

std::vector<v1::ModelSpec> MakeSpecs() {
  std::vector<v1::ModelSpec> specs;
  for (const Preset& preset : kPresets) {
    v1::ModelSpec spec;
    spec.set_layers(preset.layers);
    spec.set_hidden(preset.hidden);
    spec.set_heads(preset.heads);
    spec.set_vocab(preset.vocab);
    spec.set_seq_len(preset.seq_len);
    specs.push_back(spec);
  }
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
