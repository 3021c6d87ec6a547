// What is offloaded, in which order, and what that leaves on the device.
#include "worker/program/offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/model/testing/llama_like.h"
#include "worker/model/transformer.h"
#include "worker/program/lower.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

Graph Build(int layers, bool llama = false) {
  ModelSpec model;
  model.layers = layers;
  model.hidden = 64;
  model.heads = model.kv_heads = 4;
  model.ffn = 256;
  model.vocab = 257;
  model.seq_len = 32;
  model.dropout = 0.1;
  if (llama) model = LlamaLike(model, 2);
  auto graph = BuildTransformer(model, 2, 32, 8 * 32, true);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

MemorySpec Memory(Policy policy, int group, Offload offload) {
  MemorySpec memory;
  memory.policy = policy;
  memory.group = group;
  memory.offload = offload;
  if (policy == Policy::kCustom) memory.recompute = {"L1.mlp.*", "L*.qkv"};
  return memory;
}

Program Lowered(const Graph& graph, const Plan& plan) {
  auto program =
      LowerTraining(graph, plan, OptimizerSpec(), 3, BuiltInCpuBackend());
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

Program Lowered(const Graph& graph, Policy policy, int group, Offload offload) {
  auto plan = MakePolicyPlan(graph, Memory(policy, group, offload));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return Lowered(graph, *plan);
}

// Names with layers of the device's end of all copies of this kind, in the
// order in which they begin; one microbatch.
std::vector<std::string> Copied(const Program& program, InstructionKind kind) {
  std::vector<std::string> names;
  for (const Block& block : program.blocks) {
    for (int64_t n = 0; n < block.count; ++n) {
      const int64_t i = block.descending ? block.count - 1 - n : n;
      for (const Instruction& instruction : block.instructions) {
        if (instruction.kind != kind || !block.Runs(instruction, i)) continue;
        for (const Operand& operand : instruction.operands) {
          const Buffer& buffer = block.buffers[operand.buffer];
          if (buffer.address.arena != Arena::kHost) continue;
          names.push_back(
              InstanceName(buffer.name, block.LayerOf(i, buffer.layer_offset)));
        }
      }
    }
  }
  return names;
}

struct Case {
  const char* name;
  Policy policy;
  int group;
};

class OffloadOf : public testing::TestWithParam<Case> {
 protected:
  Program LoweredWith(const Graph& graph, Offload offload) const {
    return Lowered(graph, GetParam().policy, GetParam().group, offload);
  }
};

TEST_P(OffloadOf, CopiesWhatThePlanSaysOnceEachWay) {
  for (const bool llama : {false, true}) {
    for (const int layers : {1, 2, 5, 8}) {
      SCOPED_TRACE(absl::StrCat("llama ", llama, " layers ", layers));
      if (GetParam().policy == Policy::kCustom && layers < 2) continue;
      const Graph graph = Build(layers, llama);
      auto plan = MakePolicyPlan(
          graph, Memory(GetParam().policy, GetParam().group, Offload::kHost));
      ASSERT_TRUE(plan.ok());
      std::multiset<std::string> decided;
      for (const Decision& decision : plan->decisions) {
        if (!IsOffload(decision.decision)) continue;
        for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
          decided.insert(InstanceName(decision.value, l));
        }
      }
      const Program program = Lowered(graph, *plan);
      for (const InstructionKind kind :
           {InstructionKind::kOffload, InstructionKind::kPrefetch}) {
        const std::vector<std::string> copied = Copied(program, kind);
        EXPECT_EQ(std::multiset<std::string>(copied.begin(), copied.end()),
                  decided);
      }
      EXPECT_EQ(Copied(program, InstructionKind::kAwait).size(),
                2 * decided.size());
    }
  }
}

// Nothing is left in the segments' records but what the last group saves, and
// the values on their way: two groups' worth, whatever the number of layers.
TEST_P(OffloadOf, DeviceBytesDoNotGrowWithTheLayers) {
  const auto step_bytes_beside_gradients = [&](int layers) {
    const Program program = LoweredWith(Build(layers), Offload::kHost);
    return program.step_bytes - program.account.memory[MemoryClass::kGradients];
  };
  const int group = GetParam().policy == Policy::kFull ? GetParam().group : 1;
  if (GetParam().policy == Policy::kSqrt) return;  // its groups grow
  EXPECT_EQ(step_bytes_beside_gradients(6 * group),
            step_bytes_beside_gradients(12 * group));
}

TEST_P(OffloadOf, HostBytesAreThoseNoLongerSaved) {
  const Graph graph = Build(12);
  const Program kept = LoweredWith(graph, Offload::kNone);
  const Program offloaded = LoweredWith(graph, Offload::kHost);
  EXPECT_GT(offloaded.host_bytes, 0);
  EXPECT_EQ(offloaded.account.host_bytes, offloaded.host_bytes);
  EXPECT_LT(offloaded.account.saved_bytes, kept.account.saved_bytes);
  EXPECT_LE(offloaded.step_bytes, kept.step_bytes);
  EXPECT_EQ(kept.host_bytes, 0);
  // What the device has no longer is on the host.
  EXPECT_GE(offloaded.host_bytes + offloaded.account.saved_bytes,
            kept.account.saved_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Policies, OffloadOf,
    testing::Values(Case{"none", Policy::kNone, 1},
                    Case{"selective", Policy::kSelective, 1},
                    Case{"cheap", Policy::kCheap, 1},
                    Case{"full_1", Policy::kFull, 1},
                    Case{"full_2", Policy::kFull, 2},
                    Case{"sqrt", Policy::kSqrt, 1},
                    Case{"custom", Policy::kCustom, 1}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Offload, LastGroupStays) {
  const Graph graph = Build(5);
  auto plan = MakePolicyPlan(graph, Memory(Policy::kFull, 2, Offload::kHost));
  ASSERT_TRUE(plan.ok());
  std::map<int, ActivationDecision> inputs;
  for (const Decision& decision : plan->decisions) {
    if (decision.value != graph.values[graph.stream].name) continue;
    for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
      inputs[l] = decision.decision;
    }
  }
  const auto kHost = ActivationDecision::kOffloadHost;
  const auto kAgain = ActivationDecision::kRecompute;
  EXPECT_EQ(inputs, (std::map<int, ActivationDecision>{
                        {0, kHost},
                        {1, kAgain},
                        {2, kHost},
                        {3, kAgain},
                        {4, ActivationDecision::kKeep}}));
}

// A block for all layers but those at the end, not one for every layer.
TEST(Offload, ProgramIsAsSmallForManyLayersAsForFew) {
  const Program few = Lowered(Build(6), Policy::kNone, 1, Offload::kHost);
  const Program many = Lowered(Build(96), Policy::kNone, 1, Offload::kHost);
  EXPECT_EQ(few.blocks.size(), many.blocks.size());
}

// The first layer's values come back last, each before it is read; a copy of
// the layer below begins before the layer's own gradients are done.
TEST(Offload, PrefetchesTheLayerBelowWhileALayerRuns) {
  const Program program = Lowered(Build(6), Policy::kNone, 1, Offload::kHost);
  for (const Block& block : program.blocks) {
    if (block.name != "backward_layer" || block.count == 1) continue;
    int num_early = 0;
    for (size_t n = 0; n < block.instructions.size(); ++n) {
      const Instruction& instruction = block.instructions[n];
      if (instruction.kind != InstructionKind::kPrefetch) continue;
      EXPECT_EQ(instruction.layer_offset, -1);
      EXPECT_EQ(instruction.iterations, Iterations::kAllButLast);
      num_early += n + 5 < block.instructions.size();
    }
    EXPECT_GT(num_early, 5);
  }
}

TEST(Offload, InputsThatAreHeldLongHaveTwoPlaces) {
  const Program program = Lowered(Build(6), Policy::kFull, 1, Offload::kHost);
  std::set<int> rings;
  for (const Block& block : program.blocks) {
    if (block.name != "backward_layer") continue;
    for (const Instruction& instruction : block.instructions) {
      if (instruction.kind != InstructionKind::kPrefetch) continue;
      rings.insert(block.buffers[instruction.operands[1].buffer].address.ring);
    }
  }
  EXPECT_TRUE(rings.count(2)) << "the block that repeats";
}

// Decisions may differ from layer to layer, also about the input alone.
TEST(Offload, InputsMayBeKeptHereAndOffloadedThere) {
  const Graph graph = Build(8);
  for (int pattern = 0; pattern < 256; ++pattern) {
    Plan plan;
    plan.graph_fingerprint = graph.Fingerprint();
    std::set<std::string> decided;
    for (int layer = 0; layer < 8; ++layer) {
      if ((pattern >> layer) % 2 == 0) continue;
      Decision decision;
      decision.value = graph.values[graph.stream].name;
      decision.first_layer = decision.last_layer = layer;
      decision.decision = ActivationDecision::kOffloadHost;
      plan.decisions.push_back(decision);
      decided.insert(InstanceName(decision.value, layer));
    }
    SCOPED_TRACE(pattern);
    const std::vector<std::string> copied =
        Copied(Lowered(graph, plan), InstructionKind::kOffload);
    EXPECT_EQ(std::set<std::string>(copied.begin(), copied.end()), decided);
  }
}

}  // namespace
}  // namespace ebb
