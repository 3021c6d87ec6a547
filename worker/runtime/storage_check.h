// Proves on paper, before the first step, that a program's use of memory is
// sound: a dry walk over its instructions with no memory behind it.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "worker/program/program.h"

namespace ebb {

// Walks `program` as the executor runs it (two microbatches stand for all: what
// does not fit together shows in the second) and checks that
//   - every storage lies within its arena, aligned, and overlaps no other that
//     is alive at the same time;
//   - an instruction touches only what is alive, under the name and layer that
//     it was allocated for;
//   - the declared bytes of every storage equal what the operands that bind it
//     in its life reach, rounded up, and those of a workspace what the op asks
//     for on `backend`;
//   - what is freed is alive, with the same class and bytes;
//   - while a copy is on its way, nothing writes its source, nothing touches
//     its destination, neither is freed, no other copy begins at its place off
//     the device, and at the end of a microbatch none is.
// So bytes counted from buffers are the bytes that kernels were given.
// Errors: INTERNAL with block, instruction and value.
absl::Status CheckStorage(const Program& program, const Backend& backend);

// Scratch of a launch on `backend`: what the instruction's op asks for, from
// the types of its operands, or that of the row loop which it begins.
int64_t WorkspaceBytes(const Instruction& instruction, const Backend& backend);

}  // namespace ebb
