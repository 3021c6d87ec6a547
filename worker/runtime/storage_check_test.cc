// Tests of the dry walk: each alters one thing in a sound program.
#include "worker/runtime/storage_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "worker/runtime/testing/test_job.h"
#include "worker/runtime/testing/toy_program.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

void ExpectFault(const Program& program, const char* what, const char* value,
                 const char* instruction) {
  const absl::Status status = CheckStorage(program, BuiltInCpuBackend());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr(what));
  EXPECT_THAT(message, HasSubstr(value));
  EXPECT_THAT(message, HasSubstr(instruction));
}

TEST(StorageCheck, AcceptsSoundProgram) {
  EXPECT_TRUE(CheckStorage(MakeToyProgram(), BuiltInCpuBackend()).ok());
}

TEST(StorageCheck, ReportsValueLargerThanItsOperands) {
  Program program = MakeToyProgram();
  // The arena has room for it: the fault is that nothing binds the rest.
  program.blocks[kToyHead].buffers[0].bytes = 128;
  ExpectFault(program, "128 bytes but its operands bind 16", "losses", "total");
}

TEST(StorageCheck, ReportsValueSmallerThanItsOperand) {
  Program program = MakeToyProgram();
  for (Operand& operand : program.blocks[kToyLoad].instructions[1].operands) {
    operand.type = TensorType(DType::kF32, 40, 2);
  }
  ExpectFault(program, "does not hold its operand", "x", "instruction x");
}

TEST(StorageCheck, ReportsReadOfDroppedValue) {
  Program program = MakeToyProgram();
  program.blocks[kToyForward].instructions[1].frees.push_back(1);
  ExpectFault(program, "is not alive", "L*.y of layer 2", "block backward[2]");
}

TEST(StorageCheck, ReportsReadUnderAnotherName) {
  Program program = MakeToyProgram();
  // The gradient's bytes are alive when the stale name is read.
  program.blocks[kToyBackward].buffers[1].name = "L*.z";
  program.blocks[kToyBackward].buffers.push_back(
      program.blocks[kToyForward].buffers[2]);
  program.blocks[kToyBackward].buffers[1].name = "L*.other";
  program.blocks[kToyBackward].instructions[1].operands[1].buffer = 3;
  ExpectFault(program, "there is L*.other", "L*.z", "L*.z of block backward");
}

TEST(StorageCheck, ReportsAnotherLayersInstance) {
  Program program = MakeToyProgram();
  program.blocks[kToyBackward].descending = false;
  program.blocks[kToyBackward].buffers[0].address = {Arena::kStep,
                                                     kToySaved + 128, -64};
  ExpectFault(program, "there is L*.y of layer 2", "L*.y of layer 0",
              "block backward[0]");
}

TEST(StorageCheck, ReportsOverlap) {
  Program program = MakeToyProgram();
  program.blocks[kToyForward].buffers[2].address.base = kToySaved + 64;
  ExpectFault(program, "overlaps L*.y of layer 1", "L*.z of layer 1",
              "block forward[1]");
}

TEST(StorageCheck, ReportsStorageOutsideItsArena) {
  Program program = MakeToyProgram();
  program.step_bytes = kToyLosses;
  ExpectFault(program, "outside its arena", "losses", "block head");
}

TEST(StorageCheck, ReportsUnalignedStorage) {
  Program program = MakeToyProgram();
  program.blocks[kToyHead].buffers[0].address.base += 4;
  ExpectFault(program, "not aligned", "losses", "block head");
}

TEST(StorageCheck, ReportsFreeUnderAnotherClass) {
  Program program = MakeToyProgram();
  program.blocks[kToyBackward].buffers[0].memory_class = MemoryClass::kLive;
  ExpectFault(program, "freed as live but was allocated as saved", "L*.y",
              "block backward[2]");
}

TEST(StorageCheck, ReportsLeakInTheNextMicrobatch) {
  Program program = MakeToyProgram();
  program.blocks[kToyHead].instructions[2].frees.clear();
  ExpectFault(program, "overlaps x", "x of layer 0", "block load");
}

TEST(StorageCheck, ReportsWorkspaceThatTheOpDoesNotAskFor) {
  Program program = MakeToyProgram();
  Block& block = program.blocks[kToyHead];
  Buffer scratch = block.buffers[0];
  scratch.name = "workspace";
  scratch.address.base = kToyLosses + 64;
  scratch.memory_class = MemoryClass::kWorkspace;
  block.buffers.push_back(scratch);
  const int index = static_cast<int>(block.buffers.size()) - 1;
  block.instructions[0].workspace = index;
  block.instructions[0].allocates.push_back(index);
  block.instructions[0].frees.push_back(index);
  ExpectFault(program, "differs from the 0 bytes of scratch", "workspace",
              "losses");
}

TEST(StorageCheck, FollowsResultThatTakesOverItsOperand) {
  Program program = MakeToyProgram();
  Block& block = program.blocks[kToyBackward];
  // The gradient of y takes the place of that of z.
  block.buffers[2].address = block.buffers[1].address;
  Instruction& gelu = block.instructions[1];
  gelu.allocates.clear();
  gelu.replaces = {{1, 2}};
  gelu.frees = {0, 2};
  EXPECT_TRUE(CheckStorage(program, BuiltInCpuBackend()).ok());
  gelu.frees = {0, 1};
  ExpectFault(program, "is not alive (there is L*.y.grad", "L*.z.grad",
              "block backward[2]");
}

// A job whose values go to host memory, with blocks that repeat.
Program MakeOffloadedProgram(Policy policy) {
  JobSpec spec = SmallJob();
  spec.model.layers = 5;
  spec.memory.policy = policy;
  spec.memory.offload = Offload::kHost;
  return PlanTestJob(spec, BuiltInCpuBackend()).programs.training;
}

// `alter(instructions of the block, n)` is called for every instruction of this
// kind, each time on a fresh copy of the program; what it alters must be a
// fault. It returns false where there is nothing to alter.
template <typename Alter>
void ExpectEveryOneNeeded(const Program& program, InstructionKind kind,
                          const Alter& alter) {
  int num_altered = 0;
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    for (size_t n = 0; n < program.blocks[b].instructions.size(); ++n) {
      if (program.blocks[b].instructions[n].kind != kind) continue;
      Program altered = program;
      if (!alter(altered.blocks[b].instructions, n)) continue;
      ++num_altered;
      const absl::Status status = CheckStorage(altered, BuiltInCpuBackend());
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal)
          << program.blocks[b].name << " " << n + 1;
    }
  }
  EXPECT_GT(num_altered, 3);
}

TEST(StorageCheck, NoAwaitCanBeLeftOut) {
  for (const Policy policy : {Policy::kNone, Policy::kFull}) {
    const Program program = MakeOffloadedProgram(policy);
    ASSERT_TRUE(CheckStorage(program, BuiltInCpuBackend()).ok());
    // Frees what it should, but waits for nothing.
    ExpectEveryOneNeeded(program, InstructionKind::kAwait,
                         [](std::vector<Instruction>& list, size_t n) {
                           list[n].operands.clear();
                           return true;
                         });
    ExpectEveryOneNeeded(program, InstructionKind::kAwait,
                         [](std::vector<Instruction>& list, size_t n) {
                           list.erase(list.begin() + n);
                           return true;
                         });
  }
}

TEST(StorageCheck, NoCopyCanBeLeftOut) {
  const Program program = MakeOffloadedProgram(Policy::kNone);
  for (const InstructionKind kind :
       {InstructionKind::kOffload, InstructionKind::kPrefetch}) {
    ExpectEveryOneNeeded(program, kind,
                         [](std::vector<Instruction>& list, size_t n) {
                           list.erase(list.begin() + n);
                           return true;
                         });
  }
}

// To elsewhere, and forgotten there: who awaits the place awaits the second.
TEST(StorageCheck, NoPlaceHasTwoCopiesOnTheirWay) {
  const Program program = MakeOffloadedProgram(Policy::kNone);
  int num_altered = 0;
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    for (size_t n = 0; n < program.blocks[b].instructions.size(); ++n) {
      if (program.blocks[b].instructions[n].kind !=
          InstructionKind::kPrefetch) {
        continue;
      }
      Program altered = program;
      Block& block = altered.blocks[b];
      Instruction other = block.instructions[n];
      const int32_t elsewhere = static_cast<int32_t>(block.buffers.size());
      Buffer buffer = block.buffers[other.operands[1].buffer];
      buffer.address = {Arena::kStep, program.step_bytes, 0};
      altered.step_bytes += buffer.bytes;
      block.buffers.push_back(std::move(buffer));
      other.operands[1].buffer = elsewhere;
      other.allocates = {elsewhere};
      other.frees.clear();
      block.instructions[n].frees.push_back(elsewhere);
      block.instructions.insert(
          block.instructions.begin() + static_cast<std::ptrdiff_t>(n),
          std::move(other));
      ExpectFault(altered, "has a copy on its way already",
                  block.buffers[elsewhere].name.c_str(), block.name.c_str());
      ++num_altered;
    }
  }
  EXPECT_GT(num_altered, 3);
}

TEST(StorageCheck, NoCopyCanBeginBeforeItsSourceIsMade) {
  ExpectEveryOneNeeded(
      MakeOffloadedProgram(Policy::kNone), InstructionKind::kOffload,
      [](std::vector<Instruction>& list, size_t n) {
        // To the front of its block.
        std::rotate(list.begin(), list.begin() + n, list.begin() + n + 1);
        return true;
      });
}

// Behind the instruction that it stands before, it comes too late for it.
TEST(StorageCheck, NoAwaitCanComeLater) {
  ExpectEveryOneNeeded(
      MakeOffloadedProgram(Policy::kNone), InstructionKind::kAwait,
      [](std::vector<Instruction>& list, size_t n) {
        size_t next = n + 1;
        while (next < list.size() && IsCopy(list[next].kind)) ++next;
        if (next == list.size()) return false;  // the end of its block
        size_t end = next + 1;                  // of a row loop
        while (end < list.size() && list[end].continues) ++end;
        std::rotate(list.begin() + n, list.begin() + n + 1, list.begin() + end);
        return true;
      });
}

}  // namespace
}  // namespace ebb
