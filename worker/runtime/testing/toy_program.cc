// The toy program, line by line.
#include "worker/runtime/testing/toy_program.h"

#include <string>
#include <utility>

#include "kernels/ops/clip_scale.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/fill_zero.h"
#include "kernels/ops/gelu.h"
#include "kernels/ops/sum.h"

namespace ebb {
namespace {

const TensorType kValue(DType::kF32, 4, 2);
const TensorType kScalar(DType::kF64, 1);
const TensorType kIds(DType::kI32, 4);
const TensorType kLosses(DType::kF32, 4);

Buffer MakeBuffer(std::string name, int64_t base, int64_t stride,
                  MemoryClass memory_class) {
  Buffer buffer;
  buffer.name = std::move(name);
  buffer.bytes = 64;
  buffer.memory_class = memory_class;
  buffer.address = {Arena::kStep, base, stride};
  return buffer;
}

Operand Bind(int slot, int buffer, const TensorType& type, bool written,
             bool gradient = false) {
  Operand operand;
  operand.slot = static_cast<int8_t>(slot);
  operand.gradient = gradient;
  operand.written = written;
  operand.buffer = buffer;
  operand.type = type;
  operand.row_stride = type.row_elements();
  return operand;
}

Instruction Compute(std::string name, Op op, Phase phase,
                    std::vector<Operand> operands) {
  Instruction instruction;
  instruction.name = std::move(name);
  instruction.op = op;
  instruction.phase = phase;
  instruction.operands = std::move(operands);
  return instruction;
}

Block MakeBegin() {
  Block block;
  block.name = "begin";
  block.buffers = {MakeBuffer("total", kToyTotal, 0, MemoryClass::kLive)};
  Instruction clear =
      Compute("clear_total", Op::kFillZero, Phase::kUpdate,
              {Bind(fill_zero::kX, 0, kScalar, /*written=*/true)});
  clear.allocates = {0};
  block.instructions = {clear};
  return block;
}

Block MakeLoad() {
  Block block;
  block.name = "load";
  block.buffers = {MakeBuffer("tokens", kToyTokens, 0, MemoryClass::kLive),
                   MakeBuffer("targets", kToyTargets, 0, MemoryClass::kLive),
                   MakeBuffer("x", kToyX, 0, MemoryClass::kLive)};
  Instruction load;
  load.kind = InstructionKind::kLoadBatch;
  load.name = "batch";
  load.operands = {Bind(0, 0, kIds, true), Bind(1, 1, kIds, true)};
  load.allocates = {0, 1};
  Instruction make = Compute("x", Op::kFillZero, Phase::kForward,
                             {Bind(fill_zero::kX, 2, kValue, true)});
  make.allocates = {2};
  block.instructions = {load, make};
  return block;
}

Block MakeForward() {
  Block block;
  block.name = "forward";
  block.count = kToyLayers;
  block.period = 1;
  block.buffers = {MakeBuffer("x", kToyX, 0, MemoryClass::kLive),
                   MakeBuffer("L*.y", kToySaved, 64, MemoryClass::kSaved),
                   MakeBuffer("L*.z", kToyLive, 0, MemoryClass::kLive)};
  Instruction drop = Compute("L*.y", Op::kDropout, Phase::kForward,
                             {Bind(dropout::kX, 0, kValue, false),
                              Bind(dropout::kY, 1, kValue, true)});
  drop.value_name = "L*.y";
  drop.row_offset = 5;
  drop.row_offset_stride = 10;
  drop.allocates = {1};
  drop.flops = 3;
  Instruction gelu = Compute(
      "L*.z", Op::kGelu, Phase::kForward,
      {Bind(gelu::kX, 1, kValue, false), Bind(gelu::kY, 2, kValue, true)});
  gelu.allocates = {2};
  gelu.frees = {2};
  gelu.flops = 7;
  block.instructions = {drop, gelu};
  return block;
}

Block MakeBackward() {
  Block block;
  block.name = "backward";
  block.count = kToyLayers;
  block.descending = true;
  block.period = 1;
  block.buffers = {MakeBuffer("L*.y", kToySaved, 64, MemoryClass::kSaved),
                   MakeBuffer("L*.z.grad", kToyLive, 0, MemoryClass::kLive),
                   MakeBuffer("L*.y.grad", kToyGrad, 0, MemoryClass::kLive)};
  Instruction fill = Compute("L*.z.grad", Op::kFillZero, Phase::kRecompute,
                             {Bind(fill_zero::kX, 1, kValue, true)});
  fill.allocates = {1};
  fill.flops = 11;
  fill.recompute_flops = 11;
  Instruction gelu = Compute(
      "L*.z", Op::kGelu, Phase::kBackward,
      {Bind(gelu::kX, 0, kValue, false), Bind(gelu::kY, 1, kValue, false, true),
       Bind(gelu::kX, 2, kValue, true, true)});
  gelu.backward_kernel = true;
  gelu.allocates = {2};
  gelu.frees = {0, 1, 2};
  gelu.flops = 13;
  block.instructions = {fill, gelu};
  return block;
}

Block MakeHead() {
  Block block;
  block.name = "head";
  block.buffers = {MakeBuffer("losses", kToyLosses, 0, MemoryClass::kLive),
                   MakeBuffer("total", kToyTotal, 0, MemoryClass::kLive),
                   MakeBuffer("tokens", kToyTokens, 0, MemoryClass::kLive),
                   MakeBuffer("targets", kToyTargets, 0, MemoryClass::kLive),
                   MakeBuffer("x", kToyX, 0, MemoryClass::kLive)};
  Instruction make = Compute("losses", Op::kFillZero, Phase::kForward,
                             {Bind(fill_zero::kX, 0, kLosses, true)});
  make.allocates = {0};
  Instruction add = Compute(
      "total", Op::kSum, Phase::kForward,
      {Bind(sum::kX, 0, kLosses, false), Bind(sum::kTotal, 1, kScalar, true)});
  add.frees = {0, 2, 3};
  Instruction drop;
  drop.kind = InstructionKind::kDrop;
  drop.name = "x";
  drop.frees = {4};
  block.instructions = {make, add, drop};
  return block;
}

Block MakeEnd() {
  Block block;
  block.name = "end";
  block.buffers = {MakeBuffer("total", kToyTotal, 0, MemoryClass::kLive),
                   MakeBuffer("norm", kToyNorm, 0, MemoryClass::kLive),
                   MakeBuffer("scale", kToyScale, 0, MemoryClass::kLive)};
  Instruction clip = Compute("clip", Op::kClipScale, Phase::kUpdate,
                             {Bind(clip_scale::kTotal, 0, kScalar, false),
                              Bind(clip_scale::kNorm, 1, kScalar, true),
                              Bind(clip_scale::kScale, 2, kScalar, true)});
  clip.allocates = {1, 2};
  clip.flops = 17;  // not counted: no part of the model
  block.instructions = {clip};
  return block;
}

}  // namespace

Program MakeToyProgram() {
  Program program;
  program.step_bytes = kToyStepBytes;
  program.num_microbatches = 2;
  program.micro_batch = 1;
  program.seq_len = 4;
  program.blocks = {MakeBegin(),    MakeLoad(), MakeForward(),
                    MakeBackward(), MakeHead(), MakeEnd()};
  program.begin_microbatch = kToyLoad;
  program.end_microbatch = kToyEnd;
  ParameterLayout w;
  w.name = "w";
  w.type = TensorType(DType::kF32, 8);
  w.parameter = {Arena::kState, 0, 0};
  w.master = w.parameter;
  w.first_moment = {Arena::kState, 64, 0};
  w.second_moment = {Arena::kState, 128, 0};
  program.parameters = {w};
  program.state_bytes = 192;
  program.loss_total = {Arena::kStep, kToyTotal, 0};
  program.gradient_norm = {Arena::kStep, kToyNorm, 0};
  program.clip_scale = {Arena::kStep, kToyScale, 0};
  return program;
}

}  // namespace ebb
