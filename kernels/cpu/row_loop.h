// Runs row loops on OpenMP's team.
#pragma once

#include "kernels/row_loop.h"

namespace ebb::cpu {

// Threads take contiguous parts of the rows, each with scratch of its own.
void RunRowLoop(const RowLoop& loop, Stream stream);

}  // namespace ebb::cpu
