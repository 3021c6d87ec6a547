// Weights come from and go to Hugging Face directories unchanged, and whatever
// is wrong with a directory (cases.md F5) is told before anything is read.
#include "worker/checkpoint/huggingface.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "kernels/philox.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/huggingface_config.h"
#include "worker/checkpoint/huggingface_names.h"
#include "worker/checkpoint/initial_weights.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/model/testing/llama_like.h"
#include "worker/model/transformer.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;
using Tensors = std::map<std::string, std::vector<float>>;

ModelSpec Gpt2Model() {
  ModelSpec model;
  model.layers = 2;
  model.hidden = 8;
  model.heads = 2;
  model.kv_heads = 2;
  model.ffn = 20;
  model.vocab = 11;
  model.seq_len = 5;
  return model;
}

ModelSpec LlamaModel() {
  ModelSpec model = Gpt2Model();
  model.heads = 4;
  return LlamaLike(model, /*kv_heads=*/2);
}

// Places for all parameters of a model.
class Weights {
 public:
  explicit Weights(const ModelSpec& model) {
    const auto graph = BuildTransformer(model, 1, model.seq_len, 1, true);
    EXPECT_TRUE(graph.ok()) << graph.status();
    for (const Value& value : graph->values) {
      if (value.kind != ValueKind::kParameter) continue;
      const int count = value.per_layer ? graph->num_layers : 1;
      for (int layer = 0; layer < count; ++layer) {
        const std::string name = InstanceName(value.name, layer);
        std::vector<float>& values = tensors_[name];
        values.resize(static_cast<size_t>(value.type.num_elements()));
        wanted_.push_back({name, value.type, values.data()});
      }
    }
  }

  // Numbers that bf16 holds exactly, others for each tensor and role.
  void Fill(int salt) {
    for (auto& [name, values] : tensors_) {
      uint64_t random = std::hash<std::string>()(name) + salt;
      for (float& value : values) {
        random = philox::Mix(random + 0x9e3779b97f4a7c15);
        value = static_cast<float>(static_cast<int>(random % 255) - 127) / 64;
      }
    }
  }

  const std::vector<WantedWeight>& wanted() const { return wanted_; }
  const Tensors& tensors() const { return tensors_; }

 private:
  Tensors tensors_;
  std::vector<WantedWeight> wanted_;
};

class HuggingFace : public ::testing::Test {
 protected:
  HuggingFace() {
    // In memory where there is such a directory: many files are synced.
    const fs::path memory = "/dev/shm";
    const fs::path base =
        fs::is_directory(memory) ? memory : fs::temp_directory_path();
    std::string pattern = (base / "ebb-huggingface.XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    parent_ = pattern;
  }
  ~HuggingFace() override { fs::remove_all(parent_); }

  std::string Path(const std::string& name) const {
    return absl::StrCat(parent_, "/", name);
  }
  std::string File(const std::string& name) const {
    return absl::StrCat(Path("hf"), "/", name);
  }

  // A native checkpoint of these weights, with moments.
  CheckpointReader Native(const Weights& weights) {
    Tensors moments = weights.tensors();
    for (auto& [name, values] : moments) {
      for (float& value : values) value += 100;
    }
    std::vector<CheckpointTensor> tensors;
    for (const WantedWeight& weight : weights.wanted()) {
      tensors.push_back(
          {weight.name, CheckpointRole::kParameter, weight.type, weight.out});
      for (const CheckpointRole role :
           {CheckpointRole::kFirstMoment, CheckpointRole::kSecondMoment}) {
        tensors.push_back(
            {weight.name, role, weight.type, moments.at(weight.name).data()});
      }
    }
    CheckpointMeta meta;
    meta.step = 7;
    EXPECT_TRUE(WriteCheckpoint(Path("native"), meta, tensors).ok());
    auto reader = CheckpointReader::Open(Path("native/step-7"));
    EXPECT_TRUE(reader.ok()) << reader.status();
    return *std::move(reader);
  }

  // Exports weights of the model to hf/ and returns them.
  Weights Export(const ModelSpec& model, int64_t shard_bytes = 1 << 30) {
    Weights weights(model);
    weights.Fill(1);
    fs::remove_all(Path("native"));
    fs::remove_all(Path("hf"));
    const auto exported = ExportHuggingFace(Native(weights), model, Path("hf"),
                                            {.shard_bytes = shard_bytes});
    EXPECT_TRUE(exported.ok()) << exported.status();
    return weights;
  }

  void ExpectReads(const ModelSpec& model, const Weights& want) {
    Weights read(model);
    const auto unused = ReadInitialWeights(Path("hf"), model, read.wanted());
    ASSERT_TRUE(unused.ok()) << unused.status();
    EXPECT_EQ(read.tensors(), want.tensors());
    EXPECT_THAT(*unused, IsEmpty());
  }

  // Expects that check and read refuse hf/ and say all of `parts`.
  void ExpectRefused(
      const ModelSpec& model, std::vector<std::string> parts,
      absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    Weights weights(model);
    const absl::Status check =
        CheckInitialWeights(Path("hf"), model, weights.wanted());
    const absl::Status read =
        ReadInitialWeights(Path("hf"), model, weights.wanted()).status();
    EXPECT_EQ(check, read);
    EXPECT_EQ(check.code(), code) << check;
    for (const std::string& part : parts) {
      EXPECT_THAT(std::string(check.message()), HasSubstr(part));
    }
  }

  std::string Content(const std::string& path) const {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void Put(const std::string& path, const std::string& content) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }
  void ChangeJson(const std::string& name,
                  const std::function<void(Json&)>& change) const {
    Json json = Json::parse(Content(File(name)));
    change(json);
    Put(File(name), json.dump());
  }

  Tensors ReadFile(const std::string& name) const {
    const auto reader = SafetensorsReader::Open(File(name));
    EXPECT_TRUE(reader.ok()) << reader.status();
    Tensors tensors;
    for (const SafetensorsEntry& entry : reader->entries()) {
      std::vector<float>& values = tensors[entry.name];
      values.resize(static_cast<size_t>(entry.num_elements()));
      EXPECT_TRUE(reader->Read(entry, 0, absl::MakeSpan(values)).ok());
      shapes_[entry.name] = entry.shape;
    }
    return tensors;
  }

  // Replaces a file by one with these tensors, of these shapes or those that
  // ReadFile has seen; bf16 values or fp32.
  void WriteFile(const std::string& name, const Tensors& tensors,
                 bool bf16 = false) const {
    Json header = Json::object();
    std::string data;
    for (const auto& [tensor, values] : tensors) {
      const size_t begin = data.size();
      for (const float value : values) {
        const auto bits = std::bit_cast<uint32_t>(value);
        const uint32_t stored = bf16 ? bits >> 16 : bits;
        data.append(reinterpret_cast<const char*>(&stored), bf16 ? 2 : 4);
      }
      header[tensor] = {{"dtype", bf16 ? "BF16" : "F32"},
                        {"shape", shapes_.at(tensor)},
                        {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    Put(File(name),
        std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
  }

  std::string parent_;
  mutable std::map<std::string, std::vector<int64_t>> shapes_;
};

TEST_F(HuggingFace, Gpt2TensorsHaveTheirNamesShapesAndPlaces) {
  const ModelSpec model = Gpt2Model();
  const Weights weights = Export(model);
  const Tensors file = ReadFile("model.safetensors");
  std::vector<std::string> names;
  for (const auto& [name, values] : file) names.push_back(name);
  EXPECT_EQ(names.size(), 2u + 2u * 12u + 2u);
  const Tensors& ebb = weights.tensors();
  EXPECT_EQ(file.at("transformer.wte.weight"), ebb.at("embedding.weight"));
  EXPECT_EQ(file.at("transformer.wpe.weight"),
            ebb.at("position_embedding.weight"));
  EXPECT_EQ(file.at("transformer.ln_f.weight"), ebb.at("final_norm.gain"));
  EXPECT_EQ(file.at("transformer.ln_f.bias"), ebb.at("final_norm.bias"));
  EXPECT_EQ(file.at("transformer.h.1.ln_1.weight"),
            ebb.at("L1.attention_norm.gain"));
  EXPECT_EQ(file.at("transformer.h.1.ln_2.bias"), ebb.at("L1.mlp_norm.bias"));
  EXPECT_EQ(file.at("transformer.h.0.attn.c_attn.bias"), ebb.at("L0.qkv.bias"));
  EXPECT_EQ(file.at("transformer.h.0.mlp.c_proj.bias"),
            ebb.at("L0.mlp.out.bias"));
  // Weights of linears are stored [in, out].
  struct Linear {
    const char* file;
    const char* ebb;
    int64_t in, out;
  };
  for (const Linear& linear : {Linear{"attn.c_attn", "qkv", 8, 24},
                               Linear{"attn.c_proj", "attention_out", 8, 8},
                               Linear{"mlp.c_fc", "mlp.fc", 8, 20},
                               Linear{"mlp.c_proj", "mlp.out", 20, 8}}) {
    const std::string name =
        absl::StrCat("transformer.h.1.", linear.file, ".weight");
    SCOPED_TRACE(name);
    EXPECT_THAT(shapes_.at(name), ElementsAre(linear.in, linear.out));
    const auto& stored = file.at(name);
    const auto& weight = ebb.at(absl::StrCat("L1.", linear.ebb, ".weight"));
    for (int64_t i = 0; i < linear.in; ++i) {
      for (int64_t o = 0; o < linear.out; ++o) {
        ASSERT_EQ(stored[i * linear.out + o], weight[o * linear.in + i]);
      }
    }
  }
}

TEST_F(HuggingFace, WeightsComeBackAsTheyWere) {
  for (const bool tied : {true, false}) {
    ModelSpec model = Gpt2Model();
    model.tied_embeddings = tied;
    ExpectReads(model, Export(model));
  }
}

TEST_F(HuggingFace, Gpt2ConfigsSayWhichActivation) {
  ModelSpec model = Gpt2Model();
  model.activation = Activation::kRelu;
  ExpectReads(model, Export(model));
  EXPECT_THAT(Content(File("config.json")),
              HasSubstr("\"activation_function\": \"relu\""));
  model.activation = Activation::kGelu;
  ExpectRefused(
      model, {"activation_function is \"relu\" but model.activation is gelu"});
}

// Blocks of a transposed tensor that do not hold it whole.
TEST_F(HuggingFace, LargeTensorsComeBackAsTheyWere) {
  ModelSpec model = Gpt2Model();
  model.layers = 1;
  model.hidden = 96;
  model.ffn = 1 << 15;
  ExpectReads(model, Export(model));
}

TEST_F(HuggingFace, LlamaTensorsHaveTheirNamesShapesAndPlaces) {
  const ModelSpec model = LlamaModel();
  const Weights weights = Export(model);
  const Tensors file = ReadFile("model.safetensors");
  EXPECT_EQ(file.size(), 1u + 2u * 9u + 2u);
  const Tensors& ebb = weights.tensors();
  EXPECT_EQ(file.at("model.embed_tokens.weight"), ebb.at("embedding.weight"));
  EXPECT_EQ(file.at("lm_head.weight"), ebb.at("head.weight"));
  EXPECT_EQ(file.at("model.norm.weight"), ebb.at("final_norm.gain"));
  EXPECT_EQ(file.at("model.layers.1.input_layernorm.weight"),
            ebb.at("L1.attention_norm.gain"));
  EXPECT_EQ(file.at("model.layers.1.post_attention_layernorm.weight"),
            ebb.at("L1.mlp_norm.gain"));
  EXPECT_EQ(file.at("model.layers.0.self_attn.o_proj.weight"),
            ebb.at("L0.attention_out.weight"));
  EXPECT_EQ(file.at("model.layers.0.mlp.down_proj.weight"),
            ebb.at("L0.mlp.out.weight"));
  // One behind the other: 8 rows of q, 4 of k, 4 of v; 20 of gate, 20 of up.
  const auto expect_rows = [&](const std::string& whole,
                               const std::vector<std::string>& parts) {
    std::vector<float> rows;
    for (const std::string& part : parts) {
      const auto& values = file.at("model.layers.1." + part + ".weight");
      rows.insert(rows.end(), values.begin(), values.end());
    }
    EXPECT_EQ(rows, ebb.at(whole));
  };
  expect_rows("L1.qkv.weight",
              {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
  expect_rows("L1.mlp.fc.weight", {"mlp.gate_proj", "mlp.up_proj"});
  EXPECT_THAT(shapes_.at("model.layers.1.self_attn.k_proj.weight"),
              ElementsAre(4, 8));
  EXPECT_THAT(shapes_.at("model.layers.1.mlp.up_proj.weight"),
              ElementsAre(20, 8));
}

TEST_F(HuggingFace, LlamaWeightsComeBackAsTheyWere) {
  for (const bool option : {true, false}) {
    ModelSpec model = LlamaModel();
    model.tied_embeddings = option;
    model.bias = option;
    ExpectReads(model, Export(model));
    ExpectReads(model, Export(model, 500));
  }
}

TEST_F(HuggingFace, LlamaConfigsAreComparedFieldByField) {
  ModelSpec model = LlamaModel();
  Export(model);
  ChangeJson("config.json", [](Json& config) {
    config["hidden_act"] = "gelu";
    config["rms_norm_eps"] = 1e-6;
    config["attention_bias"] = true;
    config["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}};
    config["max_position_embeddings"] = 4;
    config["num_key_value_heads"] = 4;
    config.erase("intermediate_size");
  });
  model.rope_theta = 10000;
  ExpectRefused(model,
                {"hidden_act is \"gelu\" but model.activation is swiglu",
                 "rms_norm_eps is 1e-06 but model.norm_eps is 1e-05",
                 "attention_bias is true but model.bias is false",
                 "rope_scaling.rope_type is \"llama3\" but Ebb's rope has no",
                 "max_position_embeddings is 4 but model.seq_len is 5",
                 "num_key_value_heads is 4 but model.kv_heads is 2",
                 "intermediate_size is missing",
                 "rope_theta is 500000 but model.rope_theta is 10000"});
}

TEST_F(HuggingFace, LlamaConfigsMaySayTheSameInOtherWays) {
  ModelSpec model = LlamaModel();
  const Weights weights = Export(model);
  ChangeJson("config.json", [](Json& config) {
    for (const char* name :
         {"tie_word_embeddings", "hidden_act", "mlp_bias", "attention_bias",
          "head_dim", "rope_theta", "rope_scaling"}) {
      config.erase(name);
    }
    config["max_position_embeddings"] = 131072;
    config["rope_parameters"] = {{"rope_type", "default"},
                                 {"rope_theta", 500000.0}};
  });
  ExpectReads(model, weights);
}

// Each family's files say which: a spec of the other differs in all of it.
TEST_F(HuggingFace, ASpecOfTheOtherFamilyIsTold) {
  Export(LlamaModel());
  ExpectRefused(
      Gpt2Model(),
      {"model_type llama means model.norm rmsnorm but it is layernorm",
       "model.positions rope but it is learned",
       "hidden_act is \"silu\" but model.activation is gelu"});
  Export(Gpt2Model());
  ExpectRefused(LlamaModel(),
                {"model_type gpt2 means model.norm layernorm but it is rmsnorm",
                 "model.kv_heads is 2"});
}

TEST_F(HuggingFace, MomentsLieBesideTheWeights) {
  const ModelSpec model = Gpt2Model();
  const Weights weights = Export(model);
  const Tensors moments = ReadFile("optimizer.safetensors");
  EXPECT_EQ(moments.size(), 2 * weights.tensors().size());
  const auto& stored =
      moments.at("transformer.h.1.mlp.c_fc.weight.second_moment");
  const auto& weight = weights.tensors().at("L1.mlp.fc.weight");
  for (int64_t i = 0; i < 8; ++i) {
    for (int64_t o = 0; o < 20; ++o) {
      ASSERT_EQ(stored[i * 20 + o], weight[o * 8 + i] + 100);
    }
  }
  const auto reader = SafetensorsReader::Open(File("optimizer.safetensors"));
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->metadata().at("step"), "7");
}

TEST_F(HuggingFace, ShardsStayBelowTheirLimitAndHaveAnIndex) {
  const ModelSpec model = Gpt2Model();
  const Weights weights = Export(model, 2000);
  const Json index = Json::parse(Content(File("model.safetensors.index.json")));
  EXPECT_FALSE(fs::exists(File("model.safetensors")));
  std::map<std::string, int64_t> bytes;
  int64_t total = 0;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const auto reader = SafetensorsReader::Open(File(file));
    ASSERT_TRUE(reader.ok()) << reader.status();
    const SafetensorsEntry* entry = reader->Find(tensor);
    ASSERT_NE(entry, nullptr);
    bytes[file] += entry->end - entry->begin;
    total += entry->end - entry->begin;
  }
  EXPECT_GT(bytes.size(), 3u);
  for (const auto& [file, sum] : bytes) EXPECT_LE(sum, 2000) << file;
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_TRUE(fs::exists(
      File(absl::StrCat("model-00001-of-0000", bytes.size(), ".safetensors"))));
  ExpectReads(model, weights);
}

TEST_F(HuggingFace, ReadsNamesWithoutPrefixHalfPrecisionAndOldBuffers) {
  const ModelSpec model = Gpt2Model();
  const Weights weights = Export(model);
  const Tensors file = ReadFile("model.safetensors");
  Tensors bare;
  for (const auto& [name, values] : file) {
    const std::string without = name.substr(std::string("transformer.").size());
    bare[without] = values;
    shapes_[without] = shapes_[name];
  }
  shapes_["h.0.attn.bias"] = {1, 1, 5, 5};
  bare["h.0.attn.bias"] = std::vector<float>(25, 1);
  shapes_["h.1.attn.masked_bias"] = {};
  bare["h.1.attn.masked_bias"] = {-1e4};
  WriteFile("model.safetensors", bare, /*bf16=*/true);
  ExpectReads(model, weights);
}

TEST_F(HuggingFace, UnusedTensorsAreListed) {
  const ModelSpec model = Gpt2Model();
  Export(model);
  Tensors file = ReadFile("model.safetensors");
  file["transformer.h.2.ln_1.weight"] = std::vector<float>(8);
  shapes_["transformer.h.2.ln_1.weight"] = {8};
  WriteFile("model.safetensors", file);
  Weights read(model);
  const auto unused = ReadInitialWeights(Path("hf"), model, read.wanted());
  ASSERT_TRUE(unused.ok()) << unused.status();
  EXPECT_THAT(*unused, ElementsAre("transformer.h.2.ln_1.weight"));
}

TEST_F(HuggingFace, EveryMistakeIsToldAtOnce) {
  ModelSpec model = Gpt2Model();
  Export(model);
  Tensors file = ReadFile("model.safetensors");
  file.erase("transformer.h.1.ln_2.bias");
  shapes_["transformer.wpe.weight"] = {4, 10};
  WriteFile("model.safetensors", file);
  ChangeJson("config.json", [](Json& config) {
    config["activation_function"] = "gelu";
    config["scale_attn_by_inverse_layer_idx"] = true;
    config["layer_norm_epsilon"] = 1e-6;
    config["n_inner"] = nullptr;
    config["n_positions"] = "five";
    config.erase("vocab_size");
  });
  model.heads = 4;
  model.kv_heads = 4;
  ExpectRefused(
      model,
      {Path("hf"), "activation_function is \"gelu\"", "gelu_new",
       "scale_attn_by_inverse_layer_idx is true",
       "layer_norm_epsilon is 1e-06 but model.norm_eps is 1e-05",
       "n_inner is 32 but model.ffn is 20", "n_positions is \"five\"",
       "vocab_size is missing", "n_head is 2 but model.heads is 4",
       "missing: transformer.h.1.ln_2.bias [8]",
       "transformer.wpe.weight: want F32, BF16 or F16 [5, 8], have F32 [4, "
       "10]"});
}

TEST_F(HuggingFace, OptionalFieldsHaveTheLibrarysDefaults) {
  const ModelSpec model = Gpt2Model();
  const Weights weights = Export(model);
  ChangeJson("config.json", [](Json& config) {
    for (const char* name : {"activation_function", "layer_norm_epsilon",
                             "tie_word_embeddings", "architectures"}) {
      config.erase(name);
    }
    config["attn_pdrop"] = 0.1;
    config["task_specific_params"] = {{"text-generation", {{"x", 1}}}};
  });
  ExpectReads(model, weights);
}

TEST_F(HuggingFace, RefusesOtherModelsByName) {
  const ModelSpec model = Gpt2Model();
  Export(model);
  ChangeJson("config.json",
             [](Json& config) { config["model_type"] = "mamba"; });
  ExpectRefused(model, {"model_type is \"mamba\""},
                absl::StatusCode::kUnimplemented);
  ChangeJson("config.json", [](Json& config) { config.erase("model_type"); });
  ExpectRefused(model, {"model_type is missing"}, absl::StatusCode::kDataLoss);
  Put(File("config.json"), "{");
  ExpectRefused(model, {"not JSON", "config.json"});
}

// cases.md F5, from here on.

TEST_F(HuggingFace, RefusesDirectoriesWithoutAFile) {
  const ModelSpec model = Gpt2Model();
  Export(model);
  fs::remove(File("model.safetensors"));
  ExpectRefused(model, {"model.safetensors is missing"});
  Export(model, 2000);
  fs::remove(File("model-00002-of-00004.safetensors"));
  ASSERT_TRUE(fs::exists(File("model-00003-of-00004.safetensors")));
  ExpectRefused(model, {"model-00002-of-00004.safetensors is missing"});
}

TEST_F(HuggingFace, RefusesWhatTheIndexNamesAndItsFileLacks) {
  const ModelSpec model = Gpt2Model();
  Export(model, 2000);
  ChangeJson("model.safetensors.index.json", [](Json& index) {
    Json& map = index["weight_map"];
    map["transformer.wte.weight"] = map["transformer.h.0.ln_1.bias"];
  });
  ExpectRefused(model, {"missing: transformer.wte.weight (",
                        "model-00001-of-00004.safetensors, which has not"});
}

TEST_F(HuggingFace, RefusesEntriesThatLeaveTheDirectory) {
  const ModelSpec model = Gpt2Model();
  for (const Json& name :
       {Json("../x.safetensors"), Json("/etc/passwd"), Json(""), Json(".."),
        Json(3), Json("a/b"), Json(".hidden")}) {
    SCOPED_TRACE(name.dump());
    Export(model, 2000);
    fs::copy_file(File("model-00001-of-00004.safetensors"),
                  Path("x.safetensors"), fs::copy_options::skip_existing);
    ChangeJson("model.safetensors.index.json", [&](Json& index) {
      index["weight_map"]["transformer.h.0.ln_1.bias"] = name;
    });
    ExpectRefused(model, {"transformer.h.0.ln_1.bias in '",
                          "which is no plain name of a file"});
  }
}

TEST_F(HuggingFace, TheIndexDecidesWhichCopyCounts) {
  const ModelSpec model = Gpt2Model();
  const Weights weights = Export(model, 2000);
  const Json index = Json::parse(Content(File("model.safetensors.index.json")));
  const std::string name = "transformer.wte.weight";
  // A wrong copy in every other file, and a tensor that nobody names.
  std::set<std::string> shards;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    shards.insert(file);
  }
  for (const std::string& shard : shards) {
    if (shard == index["weight_map"][name]) continue;
    Tensors tensors = ReadFile(shard);
    shapes_[name] = {11, 8};
    tensors[name] = std::vector<float>(88, -1);
    shapes_["stray"] = {1};
    tensors["stray"] = {1};
    WriteFile(shard, tensors);
  }
  Weights read(model);
  const auto unused = ReadInitialWeights(Path("hf"), model, read.wanted());
  ASSERT_TRUE(unused.ok()) << unused.status();
  EXPECT_EQ(read.tensors(), weights.tensors());
  EXPECT_EQ(unused->size(), 2 * (shards.size() - 1));
  EXPECT_THAT(*unused, Contains(AllOf(HasSubstr(name),
                                      HasSubstr("takes it from elsewhere"))));
  EXPECT_THAT(*unused, Contains(AllOf(HasSubstr("stray"),
                                      HasSubstr("not in the index"))));
}

TEST_F(HuggingFace, RefusesContradictions) {
  const ModelSpec model = Gpt2Model();
  Export(model, 2000);
  fs::copy_file(File("model-00001-of-00004.safetensors"),
                File("model.safetensors"));
  ExpectRefused(model, {"does not name model.safetensors"});
  Export(model);
  Tensors file = ReadFile("model.safetensors");
  file["wte.weight"] = file["transformer.wte.weight"];
  shapes_["wte.weight"] = {11, 8};
  WriteFile("model.safetensors", file);
  ExpectRefused(model,
                {"under two names: transformer.wte.weight and wte.weight"});
  Put(File("model.safetensors.index.json"), "{\"weight_map\": []}");
  ExpectRefused(model, {"has no weight_map"});
  Put(File("model.safetensors.index.json"),
      "{\"weight_map\": {\"a\": \"b\", \"a\": \"c\"}}");
  ExpectRefused(model, {"two members named a"});
}

TEST_F(HuggingFace, ATiedHeadMayBeThereIfItIsTheEmbedding) {
  const ModelSpec model = Gpt2Model();
  const Weights weights = Export(model);
  Tensors file = ReadFile("model.safetensors");
  file["lm_head.weight"] = file["transformer.wte.weight"];
  shapes_["lm_head.weight"] = {11, 8};
  WriteFile("model.safetensors", file);
  ExpectReads(model, weights);
  file["lm_head.weight"][5] += 1;
  WriteFile("model.safetensors", file);
  Weights read(model);
  const absl::Status status =
      ReadInitialWeights(Path("hf"), model, read.wanted()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("lm_head.weight is not the embedding"));
}

TEST_F(HuggingFace, AnUntiedHeadMustBeThere) {
  ModelSpec model = Gpt2Model();
  model.tied_embeddings = false;
  Export(model);
  Tensors file = ReadFile("model.safetensors");
  file.erase("lm_head.weight");
  WriteFile("model.safetensors", file);
  ExpectRefused(model, {"missing: lm_head.weight [11, 8]"});
  // And a spec that ties what the file does not.
  model.tied_embeddings = true;
  ExpectRefused(model, {"tie_word_embeddings is false but "
                        "model.tied_embeddings is true"});
}

TEST_F(HuggingFace, LongListsAreCut) {
  ModelSpec model = Gpt2Model();
  Export(model);
  model.layers = 1000;
  Weights weights(model);
  const absl::Status status =
      CheckInitialWeights(Path("hf"), model, weights.wanted());
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("n_layer is 2 but model.layers is 1000"),
                    HasSubstr("and 11956 more")));
  EXPECT_LT(status.message().size(), 2000u);
}

// A good directory with bytes of its two JSON files changed either holds the
// model or is refused.
TEST_F(HuggingFace, SurvivesMutatedConfigsAndIndexes) {
  uint64_t random = 20260402;
  const auto next = [&](uint64_t below) {
    random = philox::Mix(random + 0x9e3779b97f4a7c15);
    return random % below;
  };
  constexpr char kInteresting[] = "0123456789-{}[]\",:.eE \\u\0\xff\x80";
  constexpr int kMutants = 500;
  for (const ModelSpec& model : {Gpt2Model(), LlamaModel()}) {
    const Weights weights = Export(model, 2000);
    int accepted = 0;
    for (const char* name : {"config.json", "model.safetensors.index.json"}) {
      const std::string good = Content(File(name));
      for (int n = 0; n < kMutants; ++n) {
        std::string bytes = good;
        const size_t at = next(bytes.size());
        if (next(2) == 0) {
          bytes[at] = kInteresting[next(sizeof(kInteresting) - 1)];
        } else {
          bytes.erase(at, 1 + next(6));
        }
        Put(File(name), bytes);
        accepted +=
            CheckInitialWeights(Path("hf"), model, weights.wanted()).ok();
      }
      Put(File(name), good);
    }
    // Spaces and fields that are not looked at may change.
    EXPECT_GT(accepted, 0);
    EXPECT_LT(accepted, kMutants);
  }
}

// Export.

TEST_F(HuggingFace, ExportRefusesPlacesThatAreTaken) {
  const ModelSpec model = Gpt2Model();
  Weights weights(model);
  const CheckpointReader native = Native(weights);
  fs::create_directory(Path("full"));
  Put(Path("full/file"), "mine");
  Put(Path("file"), "mine");
  for (const auto& [place, text] :
       {std::pair("full", "full is not empty"),
        std::pair("file", "file is no directory"),
        std::pair("none/hf", "no such directory")}) {
    const absl::Status status =
        ExportHuggingFace(native, model, Path(place)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
  EXPECT_EQ(Content(Path("full/file")), "mine");
  // An empty directory, and a slash behind its name, are fine.
  fs::create_directory(Path("hf"));
  EXPECT_TRUE(ExportHuggingFace(native, model, Path("hf/")).ok());
  EXPECT_TRUE(fs::exists(File("config.json")));
}

TEST_F(HuggingFace, ExportRefusesADirectoryThatMayNotBeWritten) {
  const ModelSpec model = Gpt2Model();
  Weights weights(model);
  const CheckpointReader native = Native(weights);
  fs::create_directory(Path("closed"));
  fs::permissions(Path("closed"), fs::perms::owner_read);
  fs::permissions(parent_, fs::perms::all);
  // access(2) asks for the real user.
  const uid_t user = getuid();
  if (user == 0) {
    ASSERT_EQ(setreuid(65534, 0), 0);
  }
  const absl::Status status =
      ExportHuggingFace(native, model, Path("closed/hf")).status();
  if (user == 0) {
    ASSERT_EQ(setreuid(0, 0), 0);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
}

TEST_F(HuggingFace, ExportNamesModelsThatNoFamilyHas) {
  ModelSpec model = Gpt2Model();
  Weights weights(model);
  const CheckpointReader native = Native(weights);
  model.bias = false;
  model.kv_heads = 1;
  const absl::Status status =
      ExportHuggingFace(native, model, Path("hf")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("model.bias false"),
                    HasSubstr("model.kv_heads 1 of 2 heads")));
}

// Fails the n-th operation that changes something.
class FailingFileSystem final : public FileSystem {
 public:
  explicit FailingFileSystem(int fail_at) : left_(fail_at) {}

  bool failed() const { return left_ <= 0; }

  int MakeDirectory(const std::string& path) override {
    return Fails() ? ENOSPC : real_.MakeDirectory(path);
  }
  int Create(const std::string& path, int* descriptor) override {
    return Fails() ? ENOSPC : real_.Create(path, descriptor);
  }
  int Write(int descriptor, const void* data, int64_t bytes) override {
    return Fails() ? ENOSPC : real_.Write(descriptor, data, bytes);
  }
  int Sync(int descriptor) override {
    return Fails() ? ENOSPC : real_.Sync(descriptor);
  }
  int Close(int descriptor) override {
    const int error = real_.Close(descriptor);
    return Fails() ? ENOSPC : error;
  }
  int SyncDirectory(const std::string& path) override {
    return Fails() ? ENOSPC : real_.SyncDirectory(path);
  }
  int Rename(const std::string& from, const std::string& to) override {
    return Fails() ? ENOSPC : real_.Rename(from, to);
  }
  int Exchange(const std::string& a, const std::string& b) override {
    return real_.Exchange(a, b);
  }
  int List(const std::string& path, std::vector<std::string>* names) override {
    return real_.List(path, names);
  }
  int RemoveFile(const std::string& path) override {
    return real_.RemoveFile(path);
  }
  int RemoveDirectory(const std::string& path) override {
    return real_.RemoveDirectory(path);
  }

 private:
  bool Fails() { return --left_ == 0; }

  FileSystem& real_ = PosixFileSystem();
  int left_;
};

TEST_F(HuggingFace, ExportIsCompleteOrNotThere) {
  ModelSpec model = Gpt2Model();
  model.layers = 1;
  Weights weights(model);
  const CheckpointReader native = Native(weights);
  int failures = 0;
  for (int n = 1;; ++n) {
    FailingFileSystem files(n);
    const auto exported = ExportHuggingFace(native, model, Path("hf"),
                                            {.shard_bytes = 2000}, files);
    if (exported.ok()) {
      ASSERT_FALSE(files.failed());
      break;
    }
    ++failures;
    EXPECT_EQ(exported.status().code(), absl::StatusCode::kResourceExhausted)
        << exported.status();
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(parent_)) {
      names.push_back(entry.path().filename());
    }
    // Only the sync of the directory above comes after the rename.
    if (fs::exists(Path("hf"))) {
      EXPECT_TRUE(
          CheckInitialWeights(Path("hf"), model, weights.wanted()).ok());
      fs::remove_all(Path("hf"));
    } else {
      EXPECT_THAT(names, ElementsAre("native"));
    }
  }
  EXPECT_GT(failures, 20);
}

TEST_F(HuggingFace, ACancelledExportLeavesNothing) {
  const ModelSpec model = Gpt2Model();
  Weights weights(model);
  const CheckpointReader native = Native(weights);
  int tensors = 0;
  const absl::Status status =
      ExportHuggingFace(native, model, Path("hf"),
                        {.cancelled = [&] { return ++tensors > 10; }})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(std::distance(fs::directory_iterator(parent_), {}), 1);
}

TEST_F(HuggingFace, AJobsDirectoryStandsForItsNewestCheckpoint) {
  const ModelSpec model = Gpt2Model();
  Weights weights(model);
  fs::create_directory(Path("job"));
  Native(weights);
  fs::rename(Path("native"), Path("job/checkpoints"));
  const std::string newest = Path("job/checkpoints/step-7");
  // Newer, and a crash left it incomplete.
  fs::create_directory(Path("job/checkpoints/step-9"));
  for (const char* place : {"job", "job/", "job/checkpoints",
                            "job/checkpoints/", "job/checkpoints/step-7"}) {
    const auto found = FindInitialWeights(Path(place));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, newest);
  }
  EXPECT_TRUE(CheckInitialWeights(newest, model, weights.wanted()).ok());
  // What was found at submit is what is read: a worker does not choose again.
  EXPECT_TRUE(absl::IsNotFound(
      CheckInitialWeights(Path("job"), model, weights.wanted())));

  fs::remove_all(newest);
  const absl::Status none = FindInitialWeights(Path("job")).status();
  EXPECT_TRUE(absl::IsNotFound(none));
  EXPECT_THAT(std::string(none.message()), HasSubstr("nor a config.json"));
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("no complete checkpoint below"));
  EXPECT_THAT(std::string(none.message()), HasSubstr("step-9"));
  EXPECT_TRUE(absl::IsNotFound(FindInitialWeights(Path("none")).status()));
}

}  // namespace
}  // namespace ebb
