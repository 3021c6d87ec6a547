// Sum of all elements, one after the other in double: a value has one element
// a token, too few for threads.
#include "kernels/ops/sum.h"

#include "kernels/cpu/kernels.h"

namespace ebb::cpu {

void SumUpdate(const OpCall& call, Stream) {
  const Tensor& x = call.slots[sum::kX];
  double total = 0;
  for (int64_t n = 0; n < x.type.num_elements(); ++n) {
    total += x.as<float>()[n];
  }
  *call.slots[sum::kTotal].as<double>() += total;
}

}  // namespace ebb::cpu
