// Where state off the device is copied to and from, in which order, and what
// that leaves on the device.
#include "worker/program/offload_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker/model/testing/llama_like.h"
#include "worker/model/transformer.h"
#include "worker/program/lower.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

Graph Build(int64_t vocab, bool llama, DType dtype) {
  ModelSpec model;
  model.layers = 5;
  model.hidden = 66;
  model.heads = model.kv_heads = 3;
  model.ffn = 130;
  model.vocab = vocab;
  model.seq_len = 32;
  if (llama) model = LlamaLike(model, 1);
  auto graph = BuildTransformer(model, 2, 32, 8 * 32, true, dtype);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

Program Lowered(const Graph& graph, Offload optimizer,
                bool offloads_parameters = false) {
  MemorySpec memory;
  memory.offload_optimizer = optimizer;
  if (offloads_parameters) memory.offload_parameters = Offload::kHost;
  auto plan = MakePolicyPlan(graph, memory);
  EXPECT_TRUE(plan.ok()) << plan.status();
  auto program =
      LowerTraining(graph, *plan, OptimizerSpec(), 3, BuiltInCpuBackend());
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

// Calls visit(block, instruction, iteration) for all behind the microbatches.
template <typename Visit>
void ForEachInUpdate(const Program& program, const Visit& visit) {
  for (size_t b = program.end_microbatch; b < program.blocks.size(); ++b) {
    const Block& block = program.blocks[b];
    for (int64_t i = 0; i < block.count; ++i) {
      for (const Instruction& instruction : block.instructions) {
        if (block.Runs(instruction, i)) visit(block, instruction, i);
      }
    }
  }
}

struct Case {
  const char* name;
  int64_t vocab;
  bool llama;
  DType dtype;
  Arena arena = Arena::kHostState;
  bool parameters = false;
};

class OffloadState : public testing::TestWithParam<Case> {
 protected:
  Offload Place() const {
    return GetParam().arena == Arena::kHostState ? Offload::kHost
                                                 : Offload::kDisk;
  }
};

// Every byte comes in once, is updated, and goes out once, in this order, with
// one piece coming and one going while a third is updated.
TEST_P(OffloadState, ComesInIsUpdatedAndGoesOut) {
  const Case& c = GetParam();
  const Graph graph = Build(c.vocab, c.llama, c.dtype);
  const Program program = Lowered(graph, Place(), c.parameters);
  struct Range {
    int64_t place = 0;  // in the step arena
    int64_t bytes = 0;
    bool updated = false;
    bool went_out = false;
  };
  std::map<int64_t, Range> ranges;      // by offset off the device
  std::map<int64_t, int64_t> at_place;  // offset of what lies there
  std::set<int64_t> on_the_way;
  size_t most_on_the_way = 0;
  int64_t num_elements = 0;
  ForEachInUpdate(program, [&](const Block& block,
                               const Instruction& instruction, int64_t i) {
    const auto at = [&](int operand) {
      return block.buffers[instruction.operands[operand].buffer].address.At(i);
    };
    switch (instruction.kind) {
      case InstructionKind::kPrefetch: {
        Range range;
        range.place = at(1);
        range.bytes = instruction.operands[0].type.bytes();
        EXPECT_TRUE(ranges.emplace(at(0), range).second);
        EXPECT_EQ(at(0) % BytesIn(c.arena, 1), 0);
        at_place[at(1)] = at(0);
        on_the_way.insert(at(0));
        break;
      }
      case InstructionKind::kOffload: {
        Range& range = ranges.at(at(1));
        EXPECT_TRUE(range.updated);
        EXPECT_FALSE(std::exchange(range.went_out, true));
        EXPECT_EQ(range.place, at(0));
        EXPECT_EQ(range.bytes, instruction.operands[1].type.bytes());
        on_the_way.insert(at(1));
        break;
      }
      case InstructionKind::kAwait:
        for (size_t n = 0; n < instruction.operands.size(); ++n) {
          EXPECT_EQ(on_the_way.erase(at(static_cast<int>(n))), 1u);
        }
        break;
      case InstructionKind::kCompute:
        if (instruction.op != Op::kAdamw) break;
        most_on_the_way = std::max(most_on_the_way, on_the_way.size());
        num_elements += instruction.operands[0].type.num_elements();
        for (size_t n = 0; n < instruction.operands.size(); ++n) {
          const Buffer& buffer = block.buffers[instruction.operands[n].buffer];
          if (buffer.memory_class != MemoryClass::kOptimizer &&
              !(c.parameters &&
                buffer.memory_class == MemoryClass::kParameters)) {
            continue;
          }
          ASSERT_EQ(buffer.address.arena, Arena::kStep);
          const int64_t offset = at_place.at(at(static_cast<int>(n)));
          EXPECT_EQ(on_the_way.count(offset), 0u);
          EXPECT_FALSE(std::exchange(ranges.at(offset).updated, true));
        }
        break;
      default:
        break;
    }
  });
  EXPECT_TRUE(on_the_way.empty());
  int64_t bytes = 0;
  int64_t expected_elements = 0;
  const int64_t optimizer_parts = c.dtype == DType::kF32 ? 2 : 3;
  const int64_t parts = optimizer_parts + (c.parameters ? 1 : 0);
  for (const auto& [offset, range] : ranges) {
    EXPECT_TRUE(range.went_out) << offset;
    bytes += range.bytes;
  }
  for (const ParameterLayout& layout : program.parameters) {
    expected_elements +=
        layout.type.num_elements() * std::max(1, layout.num_layers);
  }
  EXPECT_EQ(num_elements, expected_elements);
  EXPECT_EQ(bytes,
            expected_elements * (4 * optimizer_parts +
                                 (c.parameters ? DTypeBytes(c.dtype) : 0)));
  // One piece in and one out.
  EXPECT_EQ(most_on_the_way, static_cast<size_t>(2 * parts));
}

TEST_P(OffloadState, LeavesTheDeviceByTheByte) {
  const Case& c = GetParam();
  const Graph graph = Build(c.vocab, c.llama, c.dtype);
  const Program kept = Lowered(graph, Offload::kNone);
  const Program away = Lowered(graph, Place());
  const int64_t state = StateBytes(away, c.arena)[MemoryClass::kOptimizer];
  EXPECT_GE(state, kept.account.memory[MemoryClass::kOptimizer]);
  EXPECT_EQ(ArenaBytes(away, c.arena), state);
  EXPECT_EQ(away.account.host_bytes + away.account.disk_bytes, state);
  EXPECT_EQ(kept.state_bytes - away.state_bytes,
            kept.account.memory[MemoryClass::kOptimizer]);
  EXPECT_EQ(away.account.peak_bytes, away.state_bytes + away.step_bytes);
  EXPECT_EQ(away.account.memory.Sum(), away.account.peak_bytes);
  // The places lie where values of the passes lay: they cost nothing here.
  EXPECT_EQ(away.step_bytes, kept.step_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, OffloadState,
    testing::Values(Case{"Gpt", 257, false, DType::kF32},
                    Case{"GptInPieces", 5000, false, DType::kF32},
                    Case{"GptInPiecesBf16", 5000, false, DType::kBf16},
                    Case{"LlamaInPieces", 1285, true, DType::kBf16},
                    Case{"ParametersToo", 1285, false, DType::kF32,
                         Arena::kHostState, true},
                    Case{"ParametersTooBf16", 1285, true, DType::kBf16,
                         Arena::kHostState, true},
                    Case{"OnDisk", 1285, false, DType::kBf16,
                         Arena::kDiskState}),
    [](const auto& info) { return std::string(info.param.name); });

// No parameter in one piece larger than those of the layers.
TEST(OffloadStatePieces, AreNoLargerThanALayersParameter) {
  const Graph graph = Build(50000, false, DType::kF32);
  const Program program = Lowered(graph, Offload::kHost);
  int64_t of_layers = 0;
  int64_t largest = 0;
  ForEachInUpdate(program, [&](const Block& block,
                               const Instruction& instruction, int64_t) {
    if (instruction.op != Op::kAdamw) return;
    const int64_t bytes = instruction.operands[0].type.bytes();
    largest = std::max(largest, bytes);
    if (block.period > 0) of_layers = std::max(of_layers, bytes);
  });
  // Up to whole blocks, and no more pieces than 64.
  EXPECT_LE(largest,
            std::max<int64_t>(of_layers, 50000 / 64 * 66 * 4) + 512 * 66 * 4);
}

}  // namespace
}  // namespace ebb
