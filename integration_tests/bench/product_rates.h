// How fast this machine does a model's matrix products.
#pragma once

#include <string>
#include <vector>

#include "integration_tests/bench/step_bench.h"
#include "kernels/tensor.h"

namespace ebb::bench {

struct ProductRate {
  ProductShape shape;
  int64_t count = 0;           // in one step
  double kernel_seconds = 0;   // Ebb's linear, best of five
  double library_seconds = 0;  // oneDNN with weights packed beforehand, best of
                               // five; 0 where it has no such product

  double best_seconds() const {
    return library_seconds > 0 && library_seconds < kernel_seconds
               ? library_seconds
               : kernel_seconds;
  }
};

// Measures every product with the backend's threads.
std::vector<ProductRate> MeasureProducts(
    const std::vector<CountedProduct>& products, DType precision, int threads);

// FLOPs of all products over the time that they take, each as fast as either
// way does it.
double WeightedRate(const std::vector<ProductRate>& rates);

}  // namespace ebb::bench
