// What is encoded under every policy, and what that leaves between the passes.
#include "worker/program/encode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/model/testing/llama_like.h"
#include "worker/model/transformer.h"
#include "worker/program/lower.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

struct Model {
  int layers = 5;
  bool llama = false;
  bool relu = false;
  AttentionKind attention = AttentionKind::kFused;
  DType precision = DType::kF32;
};

Graph Build(const Model& variant) {
  ModelSpec model;
  model.layers = variant.layers;
  model.hidden = 60;
  model.heads = model.kv_heads = 4;
  model.ffn = 244;
  model.vocab = 257;
  model.seq_len = 33;
  model.dropout = 0.1;
  model.attention = variant.attention;
  if (variant.relu) model.activation = Activation::kRelu;
  if (variant.llama) {
    model.hidden = 64;
    model = LlamaLike(model, 2);
  }
  auto graph = BuildTransformer(model, 2, 33, 8 * 33, true, variant.precision);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

MemorySpec Memory(Policy policy, std::vector<std::string> values,
                  DType format = DType::kF8E4M3) {
  MemorySpec memory;
  memory.policy = policy;
  if (policy == Policy::kCustom) memory.recompute = {"L1.mlp.*", "L*.qkv"};
  memory.encode = {std::move(values), format};
  return memory;
}

Plan PlanOf(const Graph& graph, const MemorySpec& memory) {
  auto plan = MakePolicyPlan(graph, memory);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

Program Lowered(const Graph& graph, const Plan& plan) {
  auto program =
      LowerTraining(graph, plan, OptimizerSpec(), 3, BuiltInCpuBackend());
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

// Names with layers of what instructions of `op` work on, one microbatch.
std::multiset<std::string> WorkedOn(const Program& program, Op op) {
  std::multiset<std::string> names;
  for (const Block& block : program.blocks) {
    for (int64_t i = 0; i < block.count; ++i) {
      for (const Instruction& instruction : block.instructions) {
        if (instruction.kind != InstructionKind::kCompute ||
            instruction.op != op) {
          continue;
        }
        names.insert(InstanceName(instruction.name,
                                  block.LayerOf(i, instruction.layer_offset)));
      }
    }
  }
  return names;
}

std::multiset<std::string> Decided(const Plan& plan) {
  std::multiset<std::string> names;
  for (const Decision& decision : plan.decisions) {
    if (decision.encoded == DType::kNone) continue;
    EXPECT_FALSE(IsRecompute(decision.decision)) << decision.value;
    for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
      names.insert(InstanceName(decision.value, l));
    }
  }
  return names;
}

constexpr Policy kPolicies[] = {Policy::kNone,  Policy::kSelective,
                                Policy::kCheap, Policy::kFull,
                                Policy::kSqrt,  Policy::kCustom};

// The account within the lowering proves that nothing overlaps.
TEST(Encode, EncodesWhatThePlanSaysOnceEachWay) {
  for (const Policy policy : kPolicies) {
    for (const Offload offload :
         {Offload::kNone, Offload::kHost, Offload::kDisk}) {
      for (const DType format : {DType::kBf16, DType::kF8E4M3}) {
        for (const bool llama : {false, true}) {
          for (const int layers : {1, 2, 5, 8}) {
            if (policy == Policy::kCustom && layers < 2) continue;
            SCOPED_TRACE(absl::StrCat(
                PolicyName(policy), " offload ", static_cast<int>(offload), " ",
                DTypeName(format), " llama ", llama, " layers ", layers));
            const Graph graph = Build({.layers = layers, .llama = llama});
            MemorySpec memory = Memory(policy, {"L*"}, format);
            memory.offload = offload;
            memory.group = 2;
            const Plan plan = PlanOf(graph, memory);
            const std::multiset<std::string> decided = Decided(plan);
            EXPECT_FALSE(decided.empty());
            const Program program = Lowered(graph, plan);
            EXPECT_EQ(WorkedOn(program, Op::kEncode), decided);
            EXPECT_EQ(WorkedOn(program, Op::kDecode), decided);
            memory.encode = {};
            const Program exact = Lowered(graph, PlanOf(graph, memory));
            const ProgramAccount& account = program.account;
            if (offload == Offload::kNone) {
              EXPECT_LT(account.saved_bytes, exact.account.saved_bytes);
            } else {
              // Codes have two places where an exact input has one.
              EXPECT_LE(account.saved_bytes, exact.account.saved_bytes);
              EXPECT_LE(account.host_bytes, exact.account.host_bytes * 2 / 3);
            }
            EXPECT_EQ(program.account.model_flops, exact.account.model_flops);
            EXPECT_EQ(program.account.recompute_flops,
                      exact.account.recompute_flops);
          }
        }
      }
    }
  }
}

// Layers that are unlike one another: their inputs change places.
TEST(Encode, SomeLayersAlone) {
  const Graph graph = Build({.layers = 6});
  const std::string stream = graph.values[graph.stream].name.substr(2);
  for (const Policy policy : kPolicies) {
    for (const Offload offload :
         {Offload::kNone, Offload::kHost, Offload::kDisk}) {
      for (const std::vector<std::string>& values :
           {std::vector<std::string>{absl::StrCat("L1", stream)},
            {absl::StrCat("L0", stream), absl::StrCat("L5", stream)},
            {"L2.*", "L3.*"},
            {"L5.*"},
            {"gelu"},
            {"L*.mlp.fc", "L3.attention.lse"}}) {
        SCOPED_TRACE(absl::StrCat(PolicyName(policy), " offload ",
                                  static_cast<int>(offload), " ", values[0]));
        MemorySpec memory = Memory(policy, values);
        memory.offload = offload;
        const Plan plan = PlanOf(graph, memory);
        const Program program = Lowered(graph, plan);
        EXPECT_EQ(WorkedOn(program, Op::kEncode), Decided(plan));
        EXPECT_EQ(WorkedOn(program, Op::kDecode), Decided(plan));
      }
    }
  }
}

// To the byte: what is saved falls by what codes and scales are smaller.
TEST(Encode, SavedBytesFallByWhatCodesAreSmaller) {
  for (const DType format : {DType::kBf16, DType::kF8E4M3}) {
    const Graph graph = Build({});
    MemorySpec memory = Memory(Policy::kNone, {"gelu", "L*.qkv.y"}, format);
    const Program program = Lowered(graph, PlanOf(graph, memory));
    const auto encoding = Encoding::Create(graph, memory.encode);
    ASSERT_TRUE(encoding.ok());
    memory.encode = {};
    const Program exact = Lowered(graph, PlanOf(graph, memory));
    int64_t freed = 0;
    for (const std::string name : {"L*.mlp.act.y", "L*.qkv.y"}) {
      int v = 0;
      while (graph.values[v].name != name) ++v;
      const TensorType& type = graph.values[v].type;
      const int64_t kept = encoding->KeptBytes(graph, v, 0);
      const int64_t rows = type.dims[0];
      EXPECT_EQ(kept, format == DType::kBf16
                          ? AlignUp(type.num_elements() * 2)
                          : AlignUp(type.num_elements()) + AlignUp(4 * rows));
      freed += graph.num_layers * (AlignUp(type.bytes()) - kept);
    }
    EXPECT_EQ(exact.account.saved_bytes - program.account.saved_bytes, freed);
  }
}

// Decoded values are live, codes are saved, both in their own time.
TEST(Encode, CodesAreSavedAndDecodedValuesLive) {
  const Graph graph = Build({});
  const Program program =
      Lowered(graph, PlanOf(graph, Memory(Policy::kFull, {"L*"})));
  int num_decoded = 0;
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.instructions) {
      if (instruction.kind != InstructionKind::kCompute) continue;
      for (const Operand& operand : instruction.operands) {
        if (operand.buffer < 0) continue;
        const Buffer& buffer = block.buffers[operand.buffer];
        if (absl::EndsWith(buffer.name, ".code")) {
          EXPECT_EQ(buffer.memory_class, MemoryClass::kSaved);
        } else if (instruction.op == Op::kDecode && operand.written) {
          EXPECT_EQ(buffer.memory_class, MemoryClass::kLive);
          ++num_decoded;
        }
      }
    }
  }
  // The last group is a segment of its own: it hands no input on.
  EXPECT_EQ(num_decoded, 2);
}

// An op's name stands for its outputs; statistics go by their own names.
TEST(Encode, OpsNameTheirOutputs) {
  const Graph graph = Build({});
  const auto decided = [&](const char* name) {
    return Decided(PlanOf(graph, Memory(Policy::kNone, {name})))
        .count("L2.attention_norm.rstd");
  };
  EXPECT_EQ(decided("layer_norm"), 0u);
  EXPECT_EQ(decided("L*.attention_norm"), 0u);
  EXPECT_EQ(decided("L*.attention_norm.rstd"), 1u);
  EXPECT_EQ(decided("L2.*"), 1u);
}

// What a policy computes again is not encoded, under any budget.
TEST(Encode, WhatIsRecomputedIsNotEncoded) {
  const Graph graph = Build({});
  MemorySpec memory = Memory(Policy::kFull, {"gelu"});
  EXPECT_TRUE(Decided(PlanOf(graph, memory)).empty());
  memory = Memory(Policy::kNone, {"gelu"});
  const auto decided = Decided(PlanOf(graph, memory));
  EXPECT_EQ(decided.size(), 5u);
  memory.budget_bytes = 1;
  EXPECT_EQ(Decided(PlanOf(graph, memory)), decided);
}

TEST(Encode, RefusesNamesOfNothing) {
  struct Case {
    Model model;
    std::vector<std::string> values;
    DType format;
    const char* error;
  };
  const Case cases[] = {
      {{},
       {"L*", "silu"},
       DType::kBf16,
       "memory.encode.values: got silu: must "
       "name an op or a value of the layers"},
      {{}, {"L7.*"}, DType::kBf16, "got L7.*: must name an op or a value"},
      {{}, {"embedding.y"}, DType::kF8E4M3, "got embedding.y: must name"},
      {{.relu = true},
       {"L*.mlp.act.mask"},
       DType::kF8E4M3,
       "got L*.mlp.act.mask: must name values of elements that are wider than "
       "fp8_e4m3"},
      {{.precision = DType::kBf16},
       {"gelu"},
       DType::kBf16,
       "got gelu: must name values of elements that are wider than bf16"},
  };
  for (const Case& c : cases) {
    const auto plan = MakePolicyPlan(Build(c.model),
                                     Memory(Policy::kNone, c.values, c.format));
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(c.error));
  }
}

TEST(Encode, RefusesAPlanThatEncodesWhatIsNotThere) {
  const Graph graph = Build({});
  Plan plan = PlanOf(graph, Memory(Policy::kFull, {"L*"}));
  for (Decision& decision : plan.decisions) {
    if (IsRecompute(decision.decision)) decision.encoded = DType::kBf16;
  }
  EXPECT_EQ(LowerTraining(graph, plan, OptimizerSpec(), 1, BuiltInCpuBackend())
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ebb
