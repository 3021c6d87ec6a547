// Tests of the dry walk: each alters one thing in a sound program.
#include "worker/runtime/storage_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/backend.h"
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

}  // namespace
}  // namespace ebb
