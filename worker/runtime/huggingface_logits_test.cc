// Weights mean the same to PyTorch: logits of crafted Hugging Face files, read
// and run by Ebb, against those that integration_tests/goldens/
// huggingface_logits.py has stored. What Ebb exports of them are the same files
// again, so that the script takes an export for what it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/huggingface.h"
#include "worker/checkpoint/huggingface_config.h"
#include "worker/checkpoint/huggingface_names.h"
#include "worker/checkpoint/initial_weights.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/model/testing/llama_like.h"
#include "worker/model/transformer.h"
#include "worker/runtime/testing/forward_pass.h"
#include "worker/runtime/testing/test_job.h"
#include "worker/runtime/testing/weights.h"

namespace ebb {
namespace {

constexpr int kTokens = 16;

ModelSpec Gpt2Model() {
  ModelSpec model;
  model.layers = 2;
  model.hidden = 32;
  model.heads = 4;
  model.kv_heads = 4;
  model.ffn = 48;
  model.vocab = 61;
  model.seq_len = kTokens;
  return model;
}

ModelSpec LlamaModel() { return LlamaLike(Gpt2Model(), /*kv_heads=*/2); }

// As in the script.
std::vector<float> Crafted(const std::string& name, int64_t elements) {
  uint64_t key = 0xcbf29ce484222325;
  for (const char c : name) {
    key = (key ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  const bool is_norm =
      absl::StrContains(name, "norm.weight") ||
      (absl::StrContains(name, ".ln_") && absl::StrContains(name, "weight"));
  std::vector<float> values;
  for (int64_t i = 0; i < elements; ++i) {
    uint64_t x = (key + static_cast<uint64_t>(i)) * 0x9e3779b97f4a7c15;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
    x ^= x >> 32;
    const double u = static_cast<double>(x >> 40) / (1 << 24);
    values.push_back(static_cast<float>(0.5 * (u - 0.5) + (is_norm ? 1 : 0)));
  }
  return values;
}

// A parameter's type by its instance name.
std::map<std::string, TensorType> ParameterTypes(const ModelSpec& model) {
  const auto graph = BuildTransformer(model, 1, model.seq_len, 1, true);
  EXPECT_TRUE(graph.ok()) << graph.status();
  std::map<std::string, TensorType> types;
  for (const Value& value : graph->values) {
    if (value.kind != ValueKind::kParameter) continue;
    const int count = value.per_layer ? graph->num_layers : 1;
    for (int layer = 0; layer < count; ++layer) {
      types[InstanceName(value.name, layer)] = value.type;
    }
  }
  return types;
}

// Writes config.json and model.safetensors of crafted weights.
void WriteCrafted(const ModelSpec& model, const std::string& directory) {
  const HuggingFaceFamily family = *FamilyOfModel(model);
  std::ofstream(directory + "/config.json") << MakeConfig(family, model);
  std::vector<SafetensorsOutput> outputs;
  for (const auto& [name, type] : ParameterTypes(model)) {
    const auto tensors = HuggingFaceTensorsOf(family, model, name, type);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    for (const HuggingFaceTensor& tensor : *tensors) {
      outputs.push_back({tensor.name, tensor.shape});
    }
  }
  SafetensorsWriter writer(PosixFileSystem(), directory + "/model.safetensors");
  ASSERT_TRUE(writer.Begin(outputs, {}).ok());
  for (const SafetensorsOutput& output : outputs) {
    int64_t elements = 1;
    for (const int64_t dim : output.shape) elements *= dim;
    ASSERT_TRUE(writer.Write(Crafted(output.name, elements)).ok());
  }
  ASSERT_TRUE(writer.Finish().ok());
}

std::vector<double> ReadGolden(const std::string& name) {
  std::ifstream file(std::string(EBB_SOURCE_DIR) +
                     "/integration_tests/goldens/huggingface_logits_" + name +
                     ".txt");
  std::vector<double> values;
  for (double value = 0; file >> value;) values.push_back(value);
  return values;
}

class HuggingFaceLogits : public ::testing::TestWithParam<AttentionKind> {
 protected:
  void ExpectGolden(ModelSpec model, const std::string& golden) {
    model.attention = GetParam();
    const TestDirectory directory;
    ASSERT_NO_FATAL_FAILURE(WriteCrafted(model, directory.path()));
    TensorMap weights;
    std::vector<WantedWeight> wanted;
    for (const auto& [name, type] : ParameterTypes(model)) {
      weights[name].resize(static_cast<size_t>(type.num_elements()));
      wanted.push_back({name, type, weights[name].data()});
    }
    const auto unused = ReadInitialWeights(directory.path(), model, wanted);
    ASSERT_TRUE(unused.ok()) << unused.status();

    std::vector<int32_t> tokens;
    for (int t = 0; t < kTokens; ++t) {
      tokens.push_back(static_cast<int32_t>((7 * t + 3) % model.vocab));
    }
    const auto device = MakeTestDevice(SmallJob());
    const std::vector<float> logits =
        ForwardLogits(model, weights, tokens, *device);
    const std::vector<double> want = ReadGolden(golden);
    ASSERT_EQ(logits.size(), want.size());
    ASSERT_EQ(logits.size(), static_cast<size_t>(kTokens * model.vocab));
    double worst = 0;
    for (size_t n = 0; n < want.size(); ++n) {
      worst = std::max(worst, std::abs(logits[n] - want[n]));
    }
    EXPECT_LT(worst, 1e-5);

    // Out again: the same tensors.
    std::vector<CheckpointTensor> tensors;
    for (const WantedWeight& weight : wanted) {
      tensors.push_back(
          {weight.name, CheckpointRole::kParameter, weight.type, weight.out});
    }
    ASSERT_TRUE(
        WriteCheckpoint(directory.path() + "/native", {}, tensors).ok());
    const auto checkpoint =
        CheckpointReader::Open(directory.path() + "/native/step-0");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const std::string exported = directory.path() + "/exported";
    ASSERT_TRUE(ExportHuggingFace(*checkpoint, model, exported).ok());
    const auto file = SafetensorsReader::Open(exported + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    for (const SafetensorsEntry& entry : file->entries()) {
      std::vector<float> values(static_cast<size_t>(entry.num_elements()));
      ASSERT_TRUE(file->Read(entry, 0, absl::MakeSpan(values)).ok());
      EXPECT_EQ(values, Crafted(entry.name, entry.num_elements()))
          << entry.name;
    }
  }
};

TEST_P(HuggingFaceLogits, OfGpt2FilesArePyTorchs) {
  ExpectGolden(Gpt2Model(), "gpt2");
}

TEST_P(HuggingFaceLogits, OfLlamaFilesArePyTorchs) {
  ExpectGolden(LlamaModel(), "llama");
}

INSTANTIATE_TEST_SUITE_P(Attention, HuggingFaceLogits,
                         ::testing::Values(AttentionKind::kFused,
                                           AttentionKind::kUnfused),
                         [](const auto& info) {
                           return info.param == AttentionKind::kFused
                                      ? "Fused"
                                      : "Unfused";
                         });

}  // namespace
}  // namespace ebb
