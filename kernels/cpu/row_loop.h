// Runs row loops on OpenMP's team, and tails of products on the calling thread.
#pragma once

#include "kernels/cpu/thread_team.h"
#include "kernels/row_loop.h"

namespace ebb::cpu {

// Threads take contiguous parts of the rows, each with scratch of its own.
void RunRowLoop(const RowLoop& loop, Stream stream);

// Runs the stage on these rows and columns of its row operands, of rank 2.
void RunTail(const RowStage& stage, Range rows, Range columns);

}  // namespace ebb::cpu
