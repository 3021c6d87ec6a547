// Every reader of a parameter that lies off the device finds its copy, brought
// in time and gone when it is over.
#include "worker/program/offload_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/model/testing/llama_like.h"
#include "worker/model/transformer.h"
#include "worker/program/lower.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

struct Case {
  const char* name;
  Policy policy;
  int group = 1;
  bool llama = false;
  bool tied = true;
  Offload offload = Offload::kNone;
};

ModelSpec Model(const Case& c) {
  ModelSpec model;
  model.layers = 5;
  model.hidden = 66;
  model.heads = model.kv_heads = 3;
  model.ffn = 130;
  model.vocab = 1285;
  model.seq_len = 32;
  if (c.llama) model = LlamaLike(model, 1);
  model.tied_embeddings = c.tied;
  return model;
}

Graph Build(const Case& c, int64_t micro_batch, bool training) {
  auto graph = BuildTransformer(Model(c), micro_batch, 32, 8 * 32, training);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

Program Lowered(const Graph& graph, const Case& c, Offload parameters) {
  MemorySpec memory;
  memory.policy = c.policy;
  memory.group = c.group;
  memory.offload = c.offload;
  if (c.policy == Policy::kCustom) memory.recompute = {"L1.mlp.*", "L*.qkv"};
  memory.offload_parameters = parameters;
  auto plan = MakePolicyPlan(graph, memory);
  EXPECT_TRUE(plan.ok()) << plan.status();
  auto program =
      LowerTraining(graph, *plan, OptimizerSpec(), 3, BuiltInCpuBackend());
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

// Walks one microbatch: what is computed with a parameter reads the bytes of
// that parameter and layer, whole and there.
void ExpectReadersFindTheirCopies(const Program& program) {
  struct Copy {
    std::string name;  // with its layer
    int64_t bytes = 0;
    bool awaited = false;
  };
  std::map<int64_t, Copy> copies;         // by place in the step arena
  std::map<int64_t, int64_t> on_the_way;  // place, by offset in host memory
  int64_t num_read = 0;
  for (int b = program.begin_microbatch; b < program.end_microbatch; ++b) {
    const Block& block = program.blocks[b];
    for (int64_t n = 0; n < block.count; ++n) {
      const int64_t i = block.descending ? block.count - 1 - n : n;
      for (const Instruction& instruction : block.instructions) {
        if (!block.Runs(instruction, i)) continue;
        const auto buffer = [&](const Operand& operand) -> const Buffer& {
          return block.buffers[operand.buffer];
        };
        if (instruction.kind == InstructionKind::kPrefetch) {
          const Buffer& from = buffer(instruction.operands[0]);
          const Buffer& to = buffer(instruction.operands[1]);
          if (from.address.arena != Arena::kHostState) continue;
          const std::string name =
              InstanceName(from.name, block.LayerOf(i, from.layer_offset));
          EXPECT_EQ(name,
                    InstanceName(to.name, block.LayerOf(i, to.layer_offset)));
          Copy& copy = copies[to.address.At(i)];
          if (!instruction.allocates.empty()) copy = {name, 0, false};
          EXPECT_EQ(copy.name, name);
          EXPECT_EQ(copy.bytes, instruction.operands[1].byte_offset);
          copy.bytes += instruction.operands[1].type.bytes();
          on_the_way[from.address.At(i)] = to.address.At(i);
          continue;
        }
        if (instruction.kind == InstructionKind::kAwait) {
          for (const Operand& operand : instruction.operands) {
            if (buffer(operand).address.arena != Arena::kHostState) continue;
            const auto found = on_the_way.find(buffer(operand).address.At(i));
            ASSERT_NE(found, on_the_way.end());
            copies.at(found->second).awaited = true;
            on_the_way.erase(found);
          }
          continue;
        }
        for (const Operand& operand : instruction.operands) {
          if (operand.buffer < 0) continue;
          const Buffer& read = buffer(operand);
          ASSERT_NE(read.address.arena, Arena::kHostState) << instruction.name;
          if (read.memory_class != MemoryClass::kParameters) continue;
          const Copy& copy = copies.at(read.address.At(i));
          EXPECT_EQ(
              copy.name,
              InstanceName(read.name, block.LayerOf(i, read.layer_offset)));
          EXPECT_EQ(AlignUp(copy.bytes), read.bytes);
          EXPECT_TRUE(copy.awaited);
          ++num_read;
        }
        for (const int32_t freed : instruction.frees) {
          const Buffer& gone = block.buffers[freed];
          if (gone.memory_class != MemoryClass::kParameters) continue;
          EXPECT_EQ(copies.erase(gone.address.At(i)), 1u);
        }
      }
    }
  }
  EXPECT_TRUE(copies.empty());
  EXPECT_TRUE(on_the_way.empty());
  EXPECT_GT(num_read, 0);
}

class OffloadParameters : public testing::TestWithParam<Case> {};

TEST_P(OffloadParameters, ReadersFindTheirCopies) {
  const Case& c = GetParam();
  const Program training = Lowered(Build(c, 2, true), c, Offload::kHost);
  ExpectReadersFindTheirCopies(training);
  const Graph graph = Build(c, 3, false);
  auto evaluation = LowerEvaluation(graph, training, 2, BuiltInCpuBackend());
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  ExpectReadersFindTheirCopies(*evaluation);
}

TEST_P(OffloadParameters, LeaveTheDeviceByTheByte) {
  const Case& c = GetParam();
  const Graph graph = Build(c, 2, true);
  const Program kept = Lowered(graph, c, Offload::kNone);
  const Program away = Lowered(graph, c, Offload::kHost);
  const int64_t parameters = kept.account.memory[MemoryClass::kParameters];
  EXPECT_EQ(StateBytes(away, Arena::kHostState)[MemoryClass::kParameters],
            parameters);
  EXPECT_EQ(away.host_state_bytes, parameters);
  EXPECT_EQ(away.account.host_bytes - kept.account.host_bytes, parameters);
  EXPECT_EQ(kept.state_bytes - away.state_bytes, parameters);
  EXPECT_EQ(away.account.memory.Sum(), away.account.peak_bytes);
  EXPECT_LT(away.account.memory[MemoryClass::kParameters], parameters);
  EXPECT_LT(away.account.peak_bytes, kept.account.peak_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, OffloadParameters,
    testing::Values(Case{"None", Policy::kNone}, Case{"Full", Policy::kFull},
                    Case{"GroupsOfTwo", Policy::kFull, 2},
                    Case{"Untied", Policy::kCheap, 1, false, false},
                    Case{"Llama", Policy::kSelective, 1, true, false},
                    Case{"OtherDecisionsByLayer", Policy::kCustom},
                    Case{"SavedValuesToo", Policy::kNone, 1, false, true,
                         Offload::kHost}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ebb
