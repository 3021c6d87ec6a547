// Zeros of any type.
#include "kernels/ops/fill_zero.h"

#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

namespace ebb::cpu {

void FillZeroUpdate(const OpCall& call, Stream) {
  const Tensor& x = call.slots[fill_zero::kX];
  ParallelFor(x.type.bytes(), 4 * kElementGrain,
              [&](int64_t begin, int64_t end) {
                std::memset(x.as<char>() + begin, 0, end - begin);
              });
}

}  // namespace ebb::cpu
