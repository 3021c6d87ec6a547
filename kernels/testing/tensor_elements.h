// Elements of a tensor view in host memory as doubles, whatever its type.
#pragma once

#include <vector>

#include "kernels/tensor.h"

namespace ebb {

// Returns the elements, row-major and dense; none of an unbound tensor.
std::vector<double> ReadElements(const Tensor& tensor);

// Returns `element` rounded to `dtype`, fp32, bf16 or fp8_e4m3; of other types
// itself.
double RoundedTo(DType dtype, double element);

// Rounds each element to the tensor's type. Sizes must be equal.
void WriteElements(const std::vector<double>& elements, const Tensor& tensor);

}  // namespace ebb
