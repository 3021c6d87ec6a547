// Whole lowering: every policy's program is checked by the walk of AccountFor
// (nothing used that is not in use, nothing overlapping), is tight, and keeps
// what the policy says.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/ops/op_def.h"
#include "kernels/philox.h"
#include "worker/model/testing/llama_like.h"
#include "worker/model/transformer.h"
#include "worker/program/lower.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

ModelSpec SmallModel(AttentionKind attention, double dropout, int layers) {
  ModelSpec model;
  model.layers = layers;
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = 4;
  model.ffn = 256;
  model.vocab = 257;
  model.seq_len = 32;
  model.attention = attention;
  model.dropout = dropout;
  return model;
}

Graph Build(const ModelSpec& model, int64_t micro, bool training = true) {
  auto graph = BuildTransformer(model, micro, model.seq_len,
                                4 * micro * model.seq_len, training);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

struct NamedPolicy {
  std::string name;
  MemorySpec memory;
};

// Ops of a policy `custom` are those that the model has.
std::vector<NamedPolicy> AllPolicies(const ModelSpec& model) {
  std::vector<NamedPolicy> policies;
  for (Policy policy :
       {Policy::kNone, Policy::kSelective, Policy::kCheap, Policy::kSqrt}) {
    MemorySpec memory;
    memory.policy = policy;
    policies.push_back({PolicyName(policy), memory});
  }
  for (int group : {1, 2, 3, 5}) {
    MemorySpec memory;
    memory.policy = Policy::kFull;
    memory.group = group;
    policies.push_back({absl::StrCat("full", group), memory});
  }
  const std::vector<std::vector<std::string>> custom = {
      {model.activation == Activation::kGelu ? "gelu" : "swiglu"},
      {"L*.mlp_norm", "L1.qkv.y"},
      {"L2.input", "L*.attention_norm.rstd"},
      {model.norm == Norm::kLayerNorm ? "layer_norm" : "rms_norm", "linear",
       "L*.attention*", "L*.input"},
      {"*"}};
  for (size_t i = 0; i < custom.size(); ++i) {
    MemorySpec memory;
    memory.policy = Policy::kCustom;
    memory.recompute = custom[i];
    policies.push_back({absl::StrCat("custom", i), memory});
  }
  return policies;
}

absl::StatusOr<Program> LowerWith(const Graph& graph, const MemorySpec& memory,
                                  int num_microbatches = 4) {
  auto plan = MakePolicyPlan(graph, memory);
  if (!plan.ok()) return plan.status();
  return LowerTraining(graph, *plan, OptimizerSpec(), num_microbatches,
                       BuiltInCpuBackend());
}

Program Lowered(const Graph& graph, const MemorySpec& memory) {
  auto program = LowerWith(graph, memory);
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

MemorySpec Named(Policy policy, int group = 1) {
  MemorySpec memory;
  memory.policy = policy;
  memory.group = group;
  return memory;
}

// Shapes with 1 to 8 layers, with and without dropout, fused and unfused.
std::vector<ModelSpec> Shapes() {
  std::vector<ModelSpec> shapes;
  for (AttentionKind attention :
       {AttentionKind::kFused, AttentionKind::kUnfused}) {
    for (double dropout : {0.0, 0.1}) {
      for (int layers : {1, 5, 8}) {
        shapes.push_back(SmallModel(attention, dropout, layers));
      }
    }
  }
  ModelSpec untied = SmallModel(AttentionKind::kFused, 0.1, 3);
  untied.tied_embeddings = false;
  untied.bias = false;
  shapes.push_back(untied);
  for (AttentionKind attention :
       {AttentionKind::kFused, AttentionKind::kUnfused}) {
    for (double dropout : {0.0, 0.1}) {
      shapes.push_back(LlamaLike(SmallModel(attention, dropout, 5), 2));
    }
  }
  ModelSpec wide = SmallModel(AttentionKind::kFused, 0, 8);
  wide.hidden = 512;
  wide.heads = wide.kv_heads = 8;
  wide.ffn = 2048;
  wide.seq_len = 512;
  shapes.push_back(wide);
  return shapes;
}

TEST(Lower, EveryPolicyIsSoundAndTight) {
  for (const ModelSpec& model : Shapes()) {
    for (int64_t micro : {1, 4}) {
      const Graph graph = Build(model, micro);
      for (const NamedPolicy& policy : AllPolicies(model)) {
        if (policy.name == "custom1" && model.layers < 2) continue;
        if (policy.name == "custom2" && model.layers < 3) continue;
        for (const Offload offload : {Offload::kNone, Offload::kHost}) {
          SCOPED_TRACE(absl::StrCat(
              policy.name, " layers ", model.layers, " dropout ", model.dropout,
              " fused ", model.attention == AttentionKind::kFused, " micro ",
              micro, offload == Offload::kHost ? " offloaded" : ""));
          MemorySpec memory = policy.memory;
          memory.offload = offload;
          auto program = LowerWith(graph, memory);
          ASSERT_TRUE(program.ok()) << program.status();
          const double ratio =
              static_cast<double>(program->step_bytes) /
              static_cast<double>(program->account.largest_use_bytes);
          // Places of offloaded values are held through whole blocks.
          EXPECT_LE(ratio, offload == Offload::kNone ? 1.02 : 1.2)
              << program->step_bytes << " "
              << program->account.largest_use_bytes;
          EXPECT_EQ(program->account.memory.Sum(),
                    program->state_bytes + program->step_bytes);
          EXPECT_EQ(program->account.host_bytes, program->host_bytes);
        }
      }
    }
  }
}

TEST(Lower, SavedBytesFallWithThePolicy) {
  for (AttentionKind attention :
       {AttentionKind::kFused, AttentionKind::kUnfused}) {
    const Graph graph = Build(SmallModel(attention, 0.1, 5), 2);
    const Program none = Lowered(graph, Named(Policy::kNone));
    const Program selective = Lowered(graph, Named(Policy::kSelective));
    const Program cheap = Lowered(graph, Named(Policy::kCheap));
    const Program full = Lowered(graph, Named(Policy::kFull));
    const Program sqrt = Lowered(graph, Named(Policy::kSqrt));
    EXPECT_GT(none.account.saved_bytes, cheap.account.saved_bytes);
    EXPECT_GT(cheap.account.saved_bytes, full.account.saved_bytes);
    EXPECT_GT(full.account.saved_bytes, sqrt.account.saved_bytes);
    if (attention == AttentionKind::kUnfused) {
      EXPECT_GT(none.account.saved_bytes, selective.account.saved_bytes);
      EXPECT_GT(selective.account.recompute_flops, 0);
    } else {
      EXPECT_EQ(none.account.saved_bytes, selective.account.saved_bytes);
    }
    for (const Program* program : {&none, &selective, &cheap, &full, &sqrt}) {
      EXPECT_EQ(program->account.model_flops, none.account.model_flops);
    }
    EXPECT_GT(cheap.account.num_recompute, 0);
    EXPECT_GT(full.account.recompute_flops, cheap.account.recompute_flops);
  }
}

// Korthikanti et al. 2022, eq. 1 without dropout: of the 32 + 2as/h values of
// 2 bytes (papers: 32sbh + 2as^2b... ) Ebb in fp32 stores, per layer and per
// sbh: input 1, norm 1, q k v 3, context 1, middle 1, norm 1, fc 4, act 4 = 16
// elements, softmax output as/h, and the norms' mean and rstd that the paper
// leaves out.
TEST(Lower, SavedBytesOfALayerAreThePapers) {
  ModelSpec model = SmallModel(AttentionKind::kUnfused, 0, 8);
  const int64_t micro = 2;
  const Program deep = Lowered(Build(model, micro), Named(Policy::kNone));
  model.layers = 7;
  const Program shallow = Lowered(Build(model, micro), Named(Policy::kNone));
  const int64_t tokens = micro * model.seq_len;
  const int64_t sbh = tokens * model.hidden;
  const int64_t softmax = model.heads * model.seq_len * tokens;
  const int64_t statistics = 4 * tokens;
  EXPECT_EQ(deep.account.saved_bytes - shallow.account.saved_bytes,
            4 * (16 * sbh + softmax + statistics));
}

// The list of a Llama block with fused attention, sbh (12 + 4 k/a + 6 f/h)
// bytes in bf16, and the norms' rstd and the attention's lse in fp32; of them
// `cheap` computes two norms' outputs, their rstd and the activation again.
// The output of ReLU, for the product that reads it, and a bit an element for
// its own gradient: its input is not kept.
TEST(Lower, ReluKeepsABitInsteadOfItsInput) {
  ModelSpec model = SmallModel(AttentionKind::kFused, 0, 4);
  const auto saved = [&](Activation activation) {
    model.activation = activation;
    return Lowered(Build(model, 2), Named(Policy::kNone)).account.saved_bytes;
  };
  const int64_t elements = 2 * model.seq_len * model.ffn;
  EXPECT_EQ(saved(Activation::kGelu) - saved(Activation::kRelu),
            4 * (4 * elements - elements / 8));
}

// Queries and keys are kept as rope left them, once. Here in fp32, twice the
// bytes.
TEST(Lower, SavedBytesOfALlamaLayerAreThePapers) {
  ModelSpec model = SmallModel(AttentionKind::kFused, 0, 8);
  model.ffn = 192;
  model = LlamaLike(model, 1);
  const int64_t micro = 2;
  const auto saved = [&](int layers, Policy policy) {
    model.layers = layers;
    return Lowered(Build(model, micro), Named(policy)).account.saved_bytes;
  };
  const int64_t tokens = micro * model.seq_len;
  const int64_t sbh = tokens * model.hidden;
  const int64_t kv = sbh * model.kv_heads / model.heads;
  const int64_t sbf = tokens * model.ffn;
  const int64_t lse = tokens * model.heads;
  EXPECT_EQ(saved(8, Policy::kNone) - saved(7, Policy::kNone),
            2 * (12 * sbh + 4 * kv + 6 * sbf) + 4 * (lse + 2 * tokens));
  // The input of the second norm is a sum, which is computed again as well.
  EXPECT_EQ(saved(8, Policy::kCheap) - saved(7, Policy::kCheap),
            2 * (8 * sbh + 4 * kv + 4 * sbf) + 4 * lse);
}

// PaLM appendix B: matrix products of a step are tokens x (6 x parameters that
// enter a product + 12 L H W T), attention as full square.
TEST(Lower, ProductFlopsAreThePapers) {
  const int64_t micro = 2;
  const ModelSpec gpt2 = SmallModel(AttentionKind::kUnfused, 0.1, 5);
  for (const ModelSpec& model : {gpt2, LlamaLike(gpt2, 1)}) {
    const Graph graph = Build(model, micro);
    int64_t forward = 0;
    const auto add = [&](const std::vector<Node>& nodes, int64_t times) {
      for (const Node& node : nodes) {
        const OpDef& def = GetOpDef(node.op);
        if (def.product_flops == nullptr) continue;
        std::vector<TensorType> types;
        for (const ValueRef& ref : node.slots) {
          types.push_back(ref.value < 0 ? TensorType()
                                        : graph.values[ref.value].type);
        }
        forward += times * def.product_flops(node.attrs, types, 0);
      }
    };
    add(graph.prologue, 1);
    add(graph.layer, model.layers);
    add(graph.epilogue, 1);
    const int64_t d = model.hidden;
    const int64_t kv = d / model.heads * model.kv_heads;
    const int64_t mlp_products = model.activation == Activation::kGelu ? 2 : 3;
    const int64_t product_parameters =
        model.layers * (2 * d * d + 2 * d * kv + mlp_products * d * model.ffn) +
        model.vocab * d;
    const int64_t tokens = micro * model.seq_len;
    EXPECT_EQ(3 * forward, tokens * (6 * product_parameters +
                                     12 * model.layers * d * model.seq_len));
  }
}

TEST(Lower, RefusesAPlanForAnotherGraph) {
  const Graph graph = Build(SmallModel(AttentionKind::kFused, 0, 2), 2);
  const Graph other = Build(SmallModel(AttentionKind::kFused, 0.1, 2), 2);
  auto plan = MakePolicyPlan(other, Named(Policy::kNone));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(LowerTraining(graph, *plan, OptimizerSpec(), 1, BuiltInCpuBackend())
                .status()
                .code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Lower, EvaluationKeepsNothing) {
  for (AttentionKind attention :
       {AttentionKind::kFused, AttentionKind::kUnfused}) {
    ModelSpec model = SmallModel(attention, 0.1, 5);
    const Program training = Lowered(Build(model, 2), Named(Policy::kNone));
    auto graph = BuildTransformer(model, 1, 17, 17, false);
    ASSERT_TRUE(graph.ok());
    auto evaluation = LowerEvaluation(*graph, training, 3, BuiltInCpuBackend());
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    EXPECT_EQ(evaluation->state_bytes, training.state_bytes);
    EXPECT_EQ(evaluation->account.saved_bytes, 0);
    EXPECT_LE(static_cast<double>(evaluation->step_bytes),
              1.02 * evaluation->account.largest_use_bytes);
  }
}

// Any mix of decisions, value by value and layer by layer, gives a sound
// program with the same gradients in the same order.
void ExpectRandomMixesAreSound(const ModelSpec& model, int num_rounds,
                               bool with_offload = false) {
  const Graph graph = Build(model, 2);
  const Program none = Lowered(graph, Named(Policy::kNone));
  const auto gradients = [](const Program& program) {
    // Backward instructions layer by layer, whatever the blocks.
    std::vector<std::string> order;
    for (const Block& block : program.blocks) {
      for (int64_t n = 0; n < block.count; ++n) {
        const int64_t i = block.descending ? block.count - 1 - n : n;
        for (const Instruction& instruction : block.instructions) {
          if (instruction.phase != Phase::kBackward ||
              instruction.kind != InstructionKind::kCompute) {
            continue;
          }
          order.push_back(InstanceName(
              instruction.name, block.LayerOf(i, instruction.layer_offset)));
        }
      }
    }
    return order;
  };
  uint64_t state = 7;
  for (int round = 0; round < num_rounds; ++round) {
    Plan plan;
    plan.graph_fingerprint = graph.Fingerprint();
    for (const Value& value : graph.values) {
      if (value.kind != ValueKind::kActivation || !value.per_layer ||
          value.view_of >= 0) {
        continue;
      }
      for (int layer = 0; layer < graph.num_layers; ++layer) {
        state = philox::Mix(state);
        if (state % 3 == 0) continue;
        Decision decision;
        decision.value = value.name;
        decision.first_layer = decision.last_layer = layer;
        const bool twice =
            state % 3 == 2 && value.name != graph.values[graph.stream].name;
        decision.decision = twice ? ActivationDecision::kRecomputeTwice
                                  : ActivationDecision::kRecompute;
        if (with_offload && state / 3 % 2 == 0) {
          decision.decision = ActivationDecision::kOffloadHost;
        }
        plan.decisions.push_back(decision);
      }
    }
    auto program =
        LowerTraining(graph, plan, OptimizerSpec(), 4, BuiltInCpuBackend());
    ASSERT_TRUE(program.ok()) << round << ": " << program.status();
    EXPECT_EQ(gradients(*program), gradients(none)) << round;
    EXPECT_LE(static_cast<double>(program->step_bytes),
              (with_offload ? 1.05 : 1.02) *
                  static_cast<double>(program->account.largest_use_bytes))
        << round;
  }
}

TEST(Lower, RandomMixesAreSound) {
  const ModelSpec model = SmallModel(AttentionKind::kUnfused, 0.1, 4);
  ExpectRandomMixesAreSound(model, 300);
  ExpectRandomMixesAreSound(LlamaLike(model, 2), 100);
}

TEST(Lower, RandomMixesWithOffloadAreSound) {
  const ModelSpec model = SmallModel(AttentionKind::kUnfused, 0.1, 5);
  ExpectRandomMixesAreSound(model, 200, /*with_offload=*/true);
  ExpectRandomMixesAreSound(LlamaLike(model, 2), 100, /*with_offload=*/true);
}

// Lowering walks segments, not layers or microbatches.
TEST(Lower, ProgramIsAsSmallForManyLayersAsForFew) {
  ModelSpec model = SmallModel(AttentionKind::kFused, 0, 6);
  const Program few = Lowered(Build(model, 2), Named(Policy::kFull, 2));
  model.layers = 96;
  const Program many = Lowered(Build(model, 2), Named(Policy::kFull, 2));
  EXPECT_EQ(few.blocks.size(), many.blocks.size());
}

// Groups of k layers of which only the inputs are held while the group runs
// backwards: what lies in memory at once is one layer and k inputs, and every
// layer of a group but the last runs forward three times.
TEST(Lower, RecomputeTwiceHoldsOneLayerOfAGroup) {
  const Graph graph = Build(SmallModel(AttentionKind::kFused, 0, 8), 2);
  Plan plan;
  plan.graph_fingerprint = graph.Fingerprint();
  plan.decisions = DecideEach(graph, [&](int value, int layer) {
    if (value != graph.stream) return ActivationDecision::kRecomputeTwice;
    return layer % 4 == 0 ? ActivationDecision::kKeep
                          : ActivationDecision::kRecompute;
  });
  auto nested =
      LowerTraining(graph, plan, OptimizerSpec(), 1, BuiltInCpuBackend());
  ASSERT_TRUE(nested.ok()) << nested.status();
  const Program flat = Lowered(graph, Named(Policy::kFull, 4));
  const Program single = Lowered(graph, Named(Policy::kFull, 1));
  const int64_t input = graph.values[graph.stream].type.bytes();
  EXPECT_EQ(nested->account.saved_bytes, flat.account.saved_bytes);
  EXPECT_EQ(nested->account.saved_bytes,
            single.account.saved_bytes - (8 - 2) * input);
  EXPECT_LT(nested->account.memory[MemoryClass::kRecompute],
            flat.account.memory[MemoryClass::kRecompute] / 2);
  // Forward of 8 layers once more, and of 2 * 3 layers twice more; the last
  // product of a layer is made on the way to another alone.
  std::map<std::string, int> times;
  for (const Block& block : nested->blocks) {
    for (const Instruction& instruction : block.instructions) {
      if (instruction.phase == Phase::kRecompute) {
        times[instruction.name] += block.count;
      }
    }
  }
  EXPECT_EQ(times["L*.qkv"], 8 + 6);
  EXPECT_EQ(times["L*.mlp.fc"], 8 + 6);
  EXPECT_EQ(times["L*.mlp.out"], 6);
}

TEST(Lower, LeftoverLayersGetASegmentOfTheirOwn) {
  const Graph graph = Build(SmallModel(AttentionKind::kFused, 0, 5), 2);
  const Program program = Lowered(graph, Named(Policy::kFull, 3));
  std::vector<std::pair<int, int>> segments;
  for (const Block& block : program.blocks) {
    if (block.name == "forward_layer") {
      segments.push_back({block.first_layer, block.count * block.period});
    }
  }
  EXPECT_EQ(segments, (std::vector<std::pair<int, int>>{{0, 3}, {3, 2}}));
}

TEST(Lower, RefusesManyLayersThatDoNotRepeat) {
  const Graph graph = Build(SmallModel(AttentionKind::kFused, 0, 1000), 2);
  auto plan = MakePolicyPlan(graph, Named(Policy::kFull, 513));
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::Status status =
      LowerTraining(graph, *plan, OptimizerSpec(), 2, BuiltInCpuBackend())
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST(Policy, CustomNameThatMatchesNothingIsAnError) {
  const Graph graph = Build(SmallModel(AttentionKind::kFused, 0, 2), 2);
  MemorySpec memory = Named(Policy::kCustom);
  memory.recompute = {"gelu", "L*.mlp.axt"};
  auto plan = MakePolicyPlan(graph, memory);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(plan.status().message().find("L*.mlp.axt"), std::string::npos);
}

// A matcher that tries again at every star would never end.
TEST(Policy, CustomNameOfManyStarsIsMatchedInTime) {
  const Graph graph = Build(SmallModel(AttentionKind::kFused, 0, 2), 2);
  MemorySpec memory = Named(Policy::kCustom);
  std::string stars;
  for (int i = 0; i < 60; ++i) stars += "*.*";
  memory.recompute = {"L1" + stars + "x"};
  EXPECT_EQ(MakePolicyPlan(graph, memory).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto recomputed = [&](const std::string& name) {
    memory.recompute = {name};
    auto plan = MakePolicyPlan(graph, memory);
    std::vector<std::string> values;
    if (!plan.ok()) return values;
    for (const Decision& decision : plan->decisions) {
      if (decision.decision != ActivationDecision::kKeep) {
        values.push_back(absl::StrCat(decision.value, " ", decision.first_layer,
                                      "-", decision.last_layer));
      }
    }
    return values;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(recomputed("L*.*p.a*t*.y"), Names{"L*.mlp.act.y 0-1"});
  EXPECT_EQ(recomputed("*1***mlp.act.y**"), Names{"L*.mlp.act.y 1-1"});
  EXPECT_EQ(recomputed("L*.mlp.act.*.y"), Names{});
}

TEST(Policy, SqrtGroupRoundsUp) {
  EXPECT_EQ(SqrtGroup(1), 1);
  EXPECT_EQ(SqrtGroup(4), 2);
  EXPECT_EQ(SqrtGroup(5), 3);
  EXPECT_EQ(SqrtGroup(96), 10);
}

}  // namespace
}  // namespace ebb
