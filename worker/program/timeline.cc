#include "worker/program/timeline.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "worker/program/arena_use.h"

namespace ebb {
namespace {

int64_t NumInstructions(const Block& block) {
  return static_cast<int64_t>(block.instructions.size()) *
         (block.one_row ? 1 : block.count);
}

}  // namespace

absl::StatusOr<Timeline> MakeTimeline(const Program& program, int max_points) {
  Timeline timeline;
  timeline.num_microbatches = program.num_microbatches;
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    const Block& block = program.blocks[b];
    TimelineBlock span;
    span.name = block.name;
    span.first_instruction = timeline.num_instructions;
    span.num_instructions = NumInstructions(block);
    if (block.period > 0) {
      span.first_layer = block.first_layer;
      span.last_layer = block.first_layer + block.count * block.period - 1;
    }
    span.in_microbatch = static_cast<int>(b) >= program.begin_microbatch &&
                         static_cast<int>(b) < program.end_microbatch;
    timeline.num_instructions += span.num_instructions;
    timeline.blocks.push_back(std::move(span));
  }

  const MemoryBytes state = StateBytes(program, Arena::kState);
  const int64_t num_points =
      std::min<int64_t>(std::max(1, max_points), timeline.num_instructions);
  ArenaUse arena(program.step_bytes);
  int64_t number = 0;  // of the instruction
  int64_t largest = 0;
  const auto count = [&](const Instruction& instruction) {
    // Point p has the instructions from p * all / points on.
    if (timeline.points.empty() ||
        number * num_points >= static_cast<int64_t>(timeline.points.size()) *
                                   timeline.num_instructions) {
      TimelinePoint& point = timeline.points.emplace_back();
      point.first_instruction = number;
      largest = -1;
    }
    TimelinePoint& point = timeline.points.back();
    ++point.num_instructions;
    if (instruction.phase == Phase::kRecompute) ++point.num_recompute;
    if (arena.sum() > largest) {
      largest = arena.sum();
      for (int c = 0; c < kNumMemoryClasses; ++c) {
        point.memory.bytes[c] = state.bytes[c] + arena.bytes().bytes[c];
      }
    }
    ++number;
  };
  for (const Block& block : program.blocks) {
    const int64_t num_iterations = block.one_row ? 1 : block.count;
    for (int64_t n = 0; n < num_iterations; ++n) {
      const int64_t i = block.descending ? block.count - 1 - n : n;
      for (const Instruction& instruction : block.instructions) {
        EBB_RETURN_IF_ERROR(arena.Begin(block, instruction, i));
        count(instruction);
        EBB_RETURN_IF_ERROR(arena.End(block, instruction, i));
      }
    }
  }
  return timeline;
}

}  // namespace ebb
