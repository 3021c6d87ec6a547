// Trains the models of pytorch.json through the trainer and holds every step's
// loss and gradient norm to PyTorch's. make_goldens.py makes the file and says
// which formulas weights and tokens follow.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "worker/checkpoint/huggingface.h"
#include "worker/model/job_spec.h"
#include "worker/runtime/testing/test_job.h"
#include "worker/runtime/testing/weights.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

constexpr double kLossTolerance = 1e-5;  // relative, each step
constexpr double kNormTolerance = 1e-4;

struct Golden {
  std::string name;
  JobSpec spec;
  std::vector<double> losses, gradient_norms;
};

// The value of a choice by its word; fails the process for another word.
template <typename Choice>
Choice Chosen(const Json& word,
              std::initializer_list<std::pair<const char*, Choice>> choices) {
  for (const auto& [name, choice] : choices) {
    if (word == name) return choice;
  }
  ADD_FAILURE() << "pytorch.json: unknown word " << word;
  return {};
}

ModelSpec ReadModel(const Json& json) {
  ModelSpec model;
  model.layers = json.at("layers");
  model.hidden = json.at("hidden");
  model.heads = json.at("heads");
  model.kv_heads = json.at("kv_heads");
  model.ffn = json.at("ffn");
  model.vocab = json.at("vocab");
  model.seq_len = json.at("seq_len");
  model.norm = Chosen<Norm>(json.at("norm"), {{"layernorm", Norm::kLayerNorm},
                                              {"rmsnorm", Norm::kRmsNorm}});
  model.norm_eps = json.at("norm_eps");
  model.activation = Chosen<Activation>(
      json.at("activation"),
      {{"gelu", Activation::kGelu}, {"swiglu", Activation::kSwiglu}});
  model.positions = Chosen<Positions>(
      json.at("positions"),
      {{"learned", Positions::kLearned}, {"rope", Positions::kRope}});
  model.rope_theta = json.value("rope_theta", model.rope_theta);
  model.bias = json.at("bias");
  model.tied_embeddings = json.at("tied_embeddings");
  return model;
}

std::vector<Golden> ReadGoldens() {
  std::ifstream file(EBB_SOURCE_DIR "/integration_tests/goldens/pytorch.json");
  const Json json = Json::parse(file);
  const Json& optimizer = json.at("optimizer");
  std::vector<Golden> goldens;
  for (const Json& item : json.at("cases")) {
    Golden golden;
    golden.name = item.at("name");
    golden.losses = item.at("loss").get<std::vector<double>>();
    golden.gradient_norms = item.at("gradient_norm").get<std::vector<double>>();
    JobSpec& spec = golden.spec;
    spec = SmallJob();
    spec.model = ReadModel(item.at("model"));
    spec.eval.seq_len = spec.model.seq_len;
    spec.global_batch = json.at("global");
    spec.micro_batch = item.at("micro");
    spec.steps = json.at("steps");
    spec.precision = DType::kF32;
    spec.optimizer.lr = optimizer.at("lr");
    spec.optimizer.beta1 = optimizer.at("beta1");
    spec.optimizer.beta2 = optimizer.at("beta2");
    spec.optimizer.eps = optimizer.at("eps");
    spec.optimizer.weight_decay = optimizer.at("weight_decay");
    spec.optimizer.clip = optimizer.at("clip");
    const Json& schedule = item.at("lr_schedule");
    spec.lr_schedule.warmup = schedule.at("warmup");
    spec.lr_schedule.min_lr = schedule.at("min_lr");
    spec.lr_schedule.decay =
        Chosen<LrDecay>(schedule.at("decay"), {{"constant", LrDecay::kConstant},
                                               {"linear", LrDecay::kLinear},
                                               {"cosine", LrDecay::kCosine}});
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

// make_goldens.py's fill().
void Fill(const std::string& name, std::vector<float>& values) {
  uint32_t seed = 0x811C9DC5;
  for (const char letter : name) {
    seed = (seed ^ static_cast<uint8_t>(letter)) * 0x01000193;
  }
  const float offset = name.ends_with(".gain") ? 1 : 0;
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t x = (seed + static_cast<uint32_t>(i)) * 0x9E3779B1;
    x ^= x >> 15;
    x *= 0x85EBCA77;
    x ^= x >> 13;
    const int upper = static_cast<int>(x >> 16) - (1 << 15);
    values[i] = offset + static_cast<float>(upper) / (1 << 19);
  }
}

class PyTorchGolden : public ::testing::TestWithParam<Golden> {
 protected:
  // through_files: the weights go out to Hugging Face files and come from them.
  static void Train(AttentionKind attention, bool through_files) {
    const Golden& golden = GetParam();
    JobSpec spec = golden.spec;
    spec.model.attention = attention;
    const TestDirectory directory;
    spec.checkpoint.init_from = CraftWeights(spec, directory.path(), Fill);
    if (through_files) {
      const auto crafted = CheckpointReader::Open(spec.checkpoint.init_from);
      ASSERT_TRUE(crafted.ok()) << crafted.status();
      spec.checkpoint.init_from = directory.path() + "/files";
      const auto exported =
          ExportHuggingFace(*crafted, spec.model, spec.checkpoint.init_from);
      ASSERT_TRUE(exported.ok()) << exported.status();
    }
    const JobRun run = RunJob(spec);
    ASSERT_TRUE(run.finish.status.ok()) << run.finish.status;
    ASSERT_EQ(run.steps.size(), golden.losses.size());
    for (size_t n = 0; n < run.steps.size(); ++n) {
      EXPECT_NEAR(run.steps[n].loss / golden.losses[n], 1, kLossTolerance)
          << "step " << n + 1;
      EXPECT_NEAR(run.steps[n].gradient_norm / golden.gradient_norms[n], 1,
                  kNormTolerance)
          << "step " << n + 1;
    }
  }
};

TEST_P(PyTorchGolden, FusedAttentionTrainsTheSame) {
  Train(AttentionKind::kFused, /*through_files=*/false);
}

TEST_P(PyTorchGolden, UnfusedAttentionTrainsTheSameFromHuggingFaceFiles) {
  Train(AttentionKind::kUnfused, /*through_files=*/true);
}

INSTANTIATE_TEST_SUITE_P(Cases, PyTorchGolden,
                         ::testing::ValuesIn(ReadGoldens()),
                         [](const auto& info) { return info.param.name; });

// Two families, tied and untied, accumulation of 1 and 4 microbatches, three
// schedules; clipping acts, and the models learn.
TEST(PyTorchGoldens, CoverWhatTheyShould) {
  std::set<std::string> names;
  bool clips = false;
  for (const Golden& golden : ReadGoldens()) {
    names.insert(golden.name);
    EXPECT_EQ(golden.losses.size(), 10u);
    EXPECT_EQ(golden.gradient_norms.size(), 10u);
    EXPECT_LT(golden.losses.back(), golden.losses.front() - 0.1);
    for (const double norm : golden.gradient_norms) {
      clips = clips || norm > golden.spec.optimizer.clip;
    }
  }
  EXPECT_TRUE(clips);
  EXPECT_EQ(names.size(), 2u * 2 * 2 * 3);
}

}  // namespace
}  // namespace ebb
