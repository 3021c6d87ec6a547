// The account skips iterations that it proves equal; a walk over every one must
// find the same, in sound programs and in spoilt ones.
#include "worker/program/account.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/philox.h"
#include "worker/model/testing/llama_like.h"
#include "worker/model/transformer.h"
#include "worker/program/arena_use.h"
#include "worker/program/lower.h"
#include "worker/program/policy.h"
#include "worker/program/timeline.h"

namespace ebb {
namespace {

ModelSpec Model(int layers, AttentionKind attention, double dropout) {
  ModelSpec model;
  model.layers = layers;
  model.hidden = 64;
  model.heads = model.kv_heads = 4;
  model.ffn = 256;
  model.vocab = 257;
  model.seq_len = 32;
  model.attention = attention;
  model.dropout = dropout;
  return model;
}

// The decisions of `policies`, each for an equal share of the layers.
Program Lowered(const ModelSpec& model, const std::vector<Policy>& policies,
                int group, Offload offload = Offload::kNone) {
  auto graph = BuildTransformer(model, 2, model.seq_len, 256, true);
  EXPECT_TRUE(graph.ok()) << graph.status();
  Plan plan;
  plan.graph_fingerprint = graph->Fingerprint();
  const int num = static_cast<int>(policies.size());
  for (int s = 0; s < num; ++s) {
    MemorySpec memory;
    memory.policy = policies[s];
    memory.group = group;
    memory.offload = offload;
    auto whole = MakePolicyPlan(*graph, memory);
    EXPECT_TRUE(whole.ok());
    for (Decision decision : whole->decisions) {
      decision.first_layer =
          std::max(decision.first_layer, model.layers * s / num);
      decision.last_layer =
          std::min(decision.last_layer, model.layers * (s + 1) / num - 1);
      if (decision.first_layer > decision.last_layer) continue;
      plan.decisions.push_back(decision);
    }
  }
  auto program =
      LowerTraining(*graph, plan, OptimizerSpec(), 3, BuiltInCpuBackend());
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

std::vector<Program> Programs() {
  std::vector<Program> programs;
  const std::vector<std::vector<Policy>> mixes = {
      {Policy::kNone},
      {Policy::kCheap},
      {Policy::kFull},
      {Policy::kSelective},
      {Policy::kSqrt},
      {Policy::kFull, Policy::kNone},
      {Policy::kNone, Policy::kCheap, Policy::kFull},
  };
  for (int layers : {5, 12, 23}) {
    for (const auto& mix : mixes) {
      programs.push_back(
          Lowered(Model(layers, AttentionKind::kUnfused, 0.1), mix, 1));
    }
  }
  for (int layers : {5, 12, 23}) {
    for (const auto& mix : {mixes[0], mixes[1], mixes[2], mixes[6]}) {
      programs.push_back(Lowered(Model(layers, AttentionKind::kFused, 0.1), mix,
                                 1, Offload::kHost));
    }
  }
  programs.push_back(
      Lowered(Model(24, AttentionKind::kFused, 0), {Policy::kFull}, 2));
  programs.push_back(Lowered(LlamaLike(Model(16, AttentionKind::kFused, 0), 2),
                             {Policy::kCheap, Policy::kFull}, 1));
  return programs;
}

// Every instruction of every iteration.
absl::StatusOr<ProgramAccount> WalkAll(const Program& program) {
  ArenaUse arena(program.step_bytes);
  ProgramAccount account;
  int64_t recompute = 0;
  for (const Block& block : program.blocks) {
    for (int64_t n = 0; n < block.count; ++n) {
      const int64_t i = block.descending ? block.count - 1 - n : n;
      for (const Instruction& instruction : block.instructions) {
        if (auto s = arena.Begin(block, instruction, i); !s.ok()) return s;
        if (instruction.phase == Phase::kRecompute) ++recompute;
        if (arena.sum() > account.largest_use_bytes) {
          account.largest_use_bytes = arena.sum();
          account.memory = arena.bytes();
        }
        account.saved_bytes =
            std::max(account.saved_bytes, arena.bytes()[MemoryClass::kSaved]);
        if (auto s = arena.End(block, instruction, i); !s.ok()) return s;
      }
    }
  }
  account.num_recompute = recompute;
  // The host arena by itself.
  ArenaUse host(program.host_bytes, Arena::kHost);
  for (const Block& block : program.blocks) {
    for (int64_t n = 0; n < block.count; ++n) {
      const int64_t i = block.descending ? block.count - 1 - n : n;
      for (const Instruction& instruction : block.instructions) {
        if (auto s = host.Begin(block, instruction, i); !s.ok()) return s;
        account.host_bytes = std::max(account.host_bytes, host.sum());
        if (auto s = host.End(block, instruction, i); !s.ok()) return s;
      }
    }
  }
  return account;
}

void ExpectEqual(const absl::StatusOr<ProgramAccount>& account,
                 const absl::StatusOr<ProgramAccount>& walked) {
  ASSERT_EQ(account.ok(), walked.ok())
      << account.status() << " / " << walked.status();
  if (!account.ok()) return;
  EXPECT_EQ(account->largest_use_bytes, walked->largest_use_bytes);
  EXPECT_EQ(account->saved_bytes, walked->saved_bytes);
  EXPECT_EQ(account->host_bytes, walked->host_bytes);
  EXPECT_EQ(account->num_recompute, walked->num_recompute);
  for (const MemoryClass c :
       {MemoryClass::kGradients, MemoryClass::kSaved, MemoryClass::kLive,
        MemoryClass::kRecompute, MemoryClass::kWorkspace}) {
    EXPECT_EQ(account->memory[c], walked->memory[c]) << MemoryClassName(c);
  }
}

TEST(AccountFor, EqualsAWalkOverEveryIteration) {
  for (const Program& program : Programs()) {
    ExpectEqual(AccountFor(program), WalkAll(program));
  }
}

// A storage moved to where another is, or a step too long from layer to layer:
// whatever the walk over all finds, the account finds.
TEST(AccountFor, JudgesSpoiltProgramsAsTheWalkDoes) {
  uint64_t state = 7;
  const auto draw = [&](size_t below) {
    return static_cast<size_t>((state = philox::Mix(state)) % below);
  };
  int num_wrong = 0;
  int num_right = 0;
  for (const Program& sound : Programs()) {
    for (int round = 0; round < 40; ++round) {
      Program program = sound;
      Block& block = program.blocks[draw(program.blocks.size())];
      if (block.count < 2 || block.buffers.empty()) continue;
      Buffer& buffer = block.buffers[draw(block.buffers.size())];
      if (buffer.address.arena != Arena::kStep) continue;
      const Buffer& other = block.buffers[draw(block.buffers.size())];
      switch (draw(5)) {
        case 0:
          buffer.address.stride += 64;
          break;
        case 1:
          buffer.address.base += 64 * (1 + static_cast<int64_t>(draw(4))) - 128;
          break;
        case 2:  // where another storage is in some iteration
          buffer.address.base = other.address.At(
              static_cast<int64_t>(draw(static_cast<size_t>(block.count))));
          break;
        case 3:
          buffer.bytes += 64;
          break;
        default:
          block.count -= 1;
          break;
      }
      SCOPED_TRACE(
          absl::StrCat(block.name, " ", buffer.name, " round ", round));
      const auto walked = WalkAll(program);
      ++(walked.ok() ? num_right : num_wrong);
      ExpectEqual(AccountFor(program), walked);
    }
  }
  EXPECT_GT(num_wrong, 200);
  EXPECT_GT(num_right, 20);
}

TEST(Timeline, HasEveryInstructionAndTheAccountsPeak) {
  for (const Program& program : Programs()) {
    for (int max_points : {1, 7, 100, 100000}) {
      auto timeline = MakeTimeline(program, max_points);
      ASSERT_TRUE(timeline.ok()) << timeline.status();
      EXPECT_EQ(timeline->points.size(),
                std::min<int64_t>(max_points, timeline->num_instructions));
      int64_t next = 0, largest = 0, recompute = 0;
      for (const TimelinePoint& point : timeline->points) {
        EXPECT_EQ(point.first_instruction, next);
        EXPECT_GT(point.num_instructions, 0);
        next += point.num_instructions;
        recompute += point.num_recompute;
        largest = std::max(largest, point.memory.Sum());
      }
      EXPECT_EQ(next, timeline->num_instructions);
      EXPECT_EQ(recompute, program.account.num_recompute);
      EXPECT_EQ(largest,
                program.state_bytes + program.account.largest_use_bytes);
    }
  }
}

TEST(Timeline, BlocksAreTheProgramsInOrder) {
  const Program program = Lowered(Model(8, AttentionKind::kUnfused, 0.1),
                                  {Policy::kFull, Policy::kNone}, 1);
  auto timeline = MakeTimeline(program, 10);
  ASSERT_TRUE(timeline.ok());
  ASSERT_EQ(timeline->blocks.size(), program.blocks.size());
  EXPECT_EQ(timeline->num_microbatches, 3);
  int64_t next = 0;
  int num_forward = 0;
  for (size_t b = 0; b < timeline->blocks.size(); ++b) {
    const TimelineBlock& block = timeline->blocks[b];
    EXPECT_EQ(block.name, program.blocks[b].name);
    EXPECT_EQ(block.first_instruction, next);
    next += block.num_instructions;
    if (block.name != "forward_layer") continue;
    EXPECT_TRUE(block.in_microbatch);
    EXPECT_EQ(block.first_layer, num_forward == 0 ? 0 : 4);
    EXPECT_EQ(block.last_layer, num_forward == 0 ? 3 : 7);
    ++num_forward;
  }
  EXPECT_EQ(num_forward, 2);
  EXPECT_EQ(next, timeline->num_instructions);
  EXPECT_FALSE(timeline->blocks.front().in_microbatch);
  EXPECT_FALSE(timeline->blocks.back().in_microbatch);
}

}  // namespace
}  // namespace ebb
