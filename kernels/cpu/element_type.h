// From the element type of a tensor, known when a kernel is called, to the code
// compiled for it: kernels are templates over the type that values are stored
// in, and compute in fp32 whatever that is.
#pragma once

#include "kernels/bf16.h"
#include "kernels/tensor.h"

namespace ebb::cpu {

// Calls body(T()) with T the C++ type of fp32 or bf16 elements.
template <typename Body>
void WithElementType(DType dtype, const Body& body) {
  if (dtype == DType::kBf16) {
    body(Bf16());
  } else {
    body(float());
  }
}

}  // namespace ebb::cpu
