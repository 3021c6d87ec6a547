// Elements of a tensor view as doubles.
#include "kernels/testing/tensor_elements.h"

#include <cstdint>

#include "kernels/status.h"

namespace ebb {
namespace {

// Calls visit(i, p) for every element, i its row-major index and p its address.
template <typename T, typename Visit>
void ForEachElement(const Tensor& tensor, Visit visit) {
  const int64_t width = tensor.type.row_elements();
  for (int64_t row = 0; row < tensor.type.dims[0]; ++row) {
    T* elements = tensor.as<T>() + row * tensor.row_stride;
    for (int64_t column = 0; column < width; ++column) {
      visit(row * width + column, elements + column);
    }
  }
}

template <typename T>
void Read(const Tensor& tensor, std::vector<double>& elements) {
  ForEachElement<T>(tensor, [&](int64_t i, const T* element) {
    elements[i] = static_cast<double>(*element);
  });
}

template <typename T>
void Write(const std::vector<double>& elements, const Tensor& tensor) {
  ForEachElement<T>(tensor, [&](int64_t i, T* element) {
    *element = static_cast<T>(elements[i]);
  });
}

}  // namespace

std::vector<double> ReadElements(const Tensor& tensor) {
  if (!tensor.bound()) return {};
  std::vector<double> elements(tensor.type.num_elements());
  switch (tensor.type.dtype) {
    case DType::kF32:
      Read<float>(tensor, elements);
      break;
    case DType::kF64:
      Read<double>(tensor, elements);
      break;
    case DType::kI32:
      Read<int32_t>(tensor, elements);
      break;
    default:
      EBB_CHECK(false);
  }
  return elements;
}

void WriteElements(const std::vector<double>& elements, const Tensor& tensor) {
  EBB_CHECK(static_cast<int64_t>(elements.size()) ==
            tensor.type.num_elements());
  switch (tensor.type.dtype) {
    case DType::kF32:
      Write<float>(elements, tensor);
      break;
    case DType::kF64:
      Write<double>(elements, tensor);
      break;
    case DType::kI32:
      Write<int32_t>(elements, tensor);
      break;
    default:
      EBB_CHECK(false);
  }
}

}  // namespace ebb
