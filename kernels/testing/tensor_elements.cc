// Elements of a tensor view as doubles.
#include "kernels/testing/tensor_elements.h"

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/f8.h"
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
double ToDouble(T element) {
  return static_cast<double>(element);
}
double ToDouble(Bf16 element) { return ToFloat(element); }
double ToDouble(F8E4M3 element) { return ToFloat(element); }

template <typename T>
void FromDouble(double element, T& to) {
  to = static_cast<T>(element);
}
void FromDouble(double element, Bf16& to) {
  to = RoundToBf16(static_cast<float>(element));
}
void FromDouble(double element, F8E4M3& to) {
  to = RoundToF8E4M3(static_cast<float>(element));
}

template <typename T>
void Read(const Tensor& tensor, std::vector<double>& elements) {
  ForEachElement<T>(tensor, [&](int64_t i, const T* element) {
    elements[i] = ToDouble(*element);
  });
}

template <typename T>
void Write(const std::vector<double>& elements, const Tensor& tensor) {
  ForEachElement<T>(tensor, [&](int64_t i, T* element) {
    FromDouble(elements[i], *element);
  });
}

}  // namespace

double RoundedTo(DType dtype, double element) {
  if (dtype == DType::kF32) return static_cast<float>(element);
  if (dtype == DType::kBf16) {
    return ToFloat(RoundToBf16(static_cast<float>(element)));
  }
  if (dtype == DType::kF8E4M3) {
    return ToFloat(RoundToF8E4M3(static_cast<float>(element)));
  }
  return element;
}

std::vector<double> ReadElements(const Tensor& tensor) {
  if (!tensor.bound()) return {};
  std::vector<double> elements(tensor.type.num_elements());
  switch (tensor.type.dtype) {
    case DType::kF32:
      Read<float>(tensor, elements);
      break;
    case DType::kBf16:
      Read<Bf16>(tensor, elements);
      break;
    case DType::kF64:
      Read<double>(tensor, elements);
      break;
    case DType::kI32:
      Read<int32_t>(tensor, elements);
      break;
    case DType::kF8E4M3:
      Read<F8E4M3>(tensor, elements);
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
    case DType::kBf16:
      Write<Bf16>(elements, tensor);
      break;
    case DType::kF64:
      Write<double>(elements, tensor);
      break;
    case DType::kI32:
      Write<int32_t>(elements, tensor);
      break;
    case DType::kF8E4M3:
      Write<F8E4M3>(elements, tensor);
      break;
    default:
      EBB_CHECK(false);
  }
}

}  // namespace ebb
