// Names and keys, and the decoder's graph: shapes, parameters, initial values.
#include "worker/model/graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels/ops/op_def.h"
#include "worker/model/testing/llama_like.h"
#include "worker/model/transformer.h"

namespace ebb {
namespace {

ModelSpec Gpt2Small() {
  ModelSpec model;
  model.layers = 12;
  model.hidden = 768;
  model.heads = model.kv_heads = 12;
  model.ffn = 3072;
  model.vocab = 50257;
  model.seq_len = 1024;
  return model;
}

Graph Build(const ModelSpec& model, bool training = true) {
  auto graph = BuildTransformer(model, 2, model.seq_len, 1000, training);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

TEST(Graph, InstanceNamesPutTheLayerInForTheStar) {
  EXPECT_EQ(InstanceName("L*.mlp.fc.y", 12), "L12.mlp.fc.y");
  EXPECT_EQ(InstanceName("embedding.y", 12), "embedding.y");
}

TEST(Graph, KeysDifferByNameAndLayerAndStay) {
  std::set<uint64_t> keys;
  for (int layer = 0; layer < 100; ++layer) {
    keys.insert(ValueKey("L*.mlp.fc.weight", layer));
    keys.insert(ValueKey("L*.mlp.out.weight", layer));
  }
  EXPECT_EQ(keys.size(), 200u);
  // Outside the layers the layer does not count.
  EXPECT_EQ(ValueKey("embedding.weight", 0), ValueKey("embedding.weight", 5));
  // Checkpoints and runs of other builds draw the same numbers.
  EXPECT_EQ(ValueKey("embedding.weight", 0), 0xc9454d362550a8beull);
  EXPECT_EQ(ValueKey("L*.qkv.weight", 3), 0xb99876b7da6db34aull);
}

// Radford et al. 2019: 124M parameters, with tied embeddings.
TEST(Transformer, Gpt2SmallHasItsParameters) {
  EXPECT_EQ(Build(Gpt2Small()).num_parameters(), 124439808);
  ModelSpec untied = Gpt2Small();
  untied.tied_embeddings = false;
  EXPECT_EQ(Build(untied).num_parameters(), 124439808 + 50257 * 768);
}

// Grattafiori et al. 2024, table 3: shapes; 8.03 billion parameters as in the
// published weights.
ModelSpec Llama3Small() {
  ModelSpec model;
  model.layers = 32;
  model.hidden = 4096;
  model.heads = 32;
  model.ffn = 14336;
  model.vocab = 128256;
  model.seq_len = 8192;
  return LlamaLike(model, 8);
}

TEST(Transformer, Llama3SmallHasItsParameters) {
  EXPECT_EQ(Build(Llama3Small()).num_parameters(), 8030261248);
  ModelSpec tied = Llama3Small();
  tied.tied_embeddings = true;
  EXPECT_EQ(Build(tied).num_parameters(), 8030261248 - 128256 * 4096);
}

// Options are independent: every mix is a graph, with a fingerprint of its own.
TEST(Transformer, EveryMixOfOptionsIsAGraph) {
  std::set<uint64_t> fingerprints;
  for (int mix = 0; mix < 64; ++mix) {
    ModelSpec model = Gpt2Small();
    if (mix & 1) model.norm = Norm::kRmsNorm;
    if (mix & 2) model.positions = Positions::kRope;
    if (mix & 4) model.activation = Activation::kSwiglu;
    if (mix & 8) model.kv_heads = 3;
    if (mix & 16) model.bias = false;
    if (mix & 32) model.dropout = 0.1;
    EXPECT_TRUE(fingerprints.insert(Build(model).Fingerprint()).second) << mix;
  }
  ModelSpec model = Llama3Small();
  fingerprints.insert(Build(model).Fingerprint());
  model.rope_theta = 10000;
  EXPECT_TRUE(fingerprints.insert(Build(model).Fingerprint()).second);
}

// What backward reads of ReLU is a bit an element.
TEST(Transformer, ReluHasAMask) {
  ModelSpec model = Gpt2Small();
  model.activation = Activation::kRelu;
  const Graph graph = Build(model);
  for (const Value& value : graph.values) {
    if (value.name != "L*.mlp.act.mask") continue;
    EXPECT_EQ(value.type,
              TensorType(DType::kI32, graph.micro_batch * graph.seq_len,
                         model.ffn / 32));
    return;
  }
  ADD_FAILURE() << "no mask";
}

TEST(Transformer, OneLayerStandsForAll) {
  ModelSpec model = Gpt2Small();
  const Graph few = Build(model);
  model.layers = 96;
  const Graph many = Build(model);
  EXPECT_EQ(few.values.size(), many.values.size());
  EXPECT_EQ(few.layer.size(), many.layer.size());
  EXPECT_NE(few.Fingerprint(), many.Fingerprint());
  EXPECT_EQ(few.Fingerprint(), Build(Gpt2Small()).Fingerprint());
}

TEST(Transformer, OnlyMatricesDecay) {
  for (const ModelSpec& model : {Gpt2Small(), Llama3Small()}) {
    for (const Value& value : Build(model).values) {
      if (value.kind != ValueKind::kParameter) continue;
      const bool is_matrix = value.name.ends_with(".weight");
      EXPECT_EQ(value.decays, is_matrix) << value.name;
      EXPECT_EQ(value.type.rank > 1, is_matrix) << value.name;
    }
  }
}

TEST(Transformer, ResidualProjectionsStartSmaller) {
  const double residual = 0.02 / std::sqrt(24.0);
  for (const Value& value : Build(Gpt2Small()).values) {
    if (value.kind != ValueKind::kParameter || value.type.rank < 2) continue;
    const bool is_residual = value.name == "L*.attention_out.weight" ||
                             value.name == "L*.mlp.out.weight";
    EXPECT_DOUBLE_EQ(value.init_std, is_residual ? residual : 0.02)
        << value.name;
  }
}

TEST(Transformer, FusedAndUnfusedAttentionDrawTheSameMask) {
  ModelSpec model = Gpt2Small();
  model.dropout = 0.1;
  std::set<std::string> names;
  for (AttentionKind kind : {AttentionKind::kFused, AttentionKind::kUnfused}) {
    model.attention = kind;
    for (const Node& node : Build(model).layer) {
      const bool draws = node.attrs.dropout > 0;
      EXPECT_EQ(draws, !node.random_name.empty()) << node.name;
      if (node.op == Op::kAttention) names.insert(node.random_name);
      if (node.name == "L*.attention_dropout") names.insert(node.random_name);
    }
  }
  EXPECT_EQ(names, std::set<std::string>{"L*.attention_dropout"});
}

TEST(Transformer, EvaluationHasNoDropout) {
  ModelSpec model = Gpt2Small();
  model.dropout = 0.1;
  const Graph graph = Build(model, /*training=*/false);
  for (const auto* nodes : {&graph.prologue, &graph.layer, &graph.epilogue}) {
    for (const Node& node : *nodes) {
      EXPECT_EQ(node.attrs.dropout, 0) << node.name;
      EXPECT_NE(node.op, Op::kDropout);
    }
  }
}

TEST(Transformer, SequencesLongerThanTheModelsAreRefused) {
  const ModelSpec model = Gpt2Small();
  EXPECT_EQ(BuildTransformer(model, 1, 1025, 1, true).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ebb
