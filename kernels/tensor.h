// Element types, tensor types and tensor views: what kernels and descriptions
// agree on. No dependency beyond the standard library, so that device code may
// include it.
//
// One legend of shape letters for the whole project:
//   B sequences in a microbatch   T tokens per sequence   N = B * T
//   D model width                 H query heads           K key/value heads
//   W head width                  F feed-forward width    V vocabulary
//   X experts                     I, O input and output width of a linear
// Letters name logical dims; a sharded one is written out in the comment.
#pragma once

#include <array>
#include <cstdint>

namespace ebb {

enum class DType : uint8_t { kNone, kF32, kBf16, kF16, kF64, kI32, kF8E4M3 };

constexpr int64_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kNone:
      return 0;
    case DType::kF32:
      return 4;
    case DType::kBf16:
      return 2;
    case DType::kF16:
      return 2;
    case DType::kF64:
      return 8;
    case DType::kI32:
      return 4;
    case DType::kF8E4M3:
      return 1;
  }
  return 0;
}

constexpr const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kNone:
      return "none";
    case DType::kF32:
      return "fp32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    case DType::kF64:
      return "fp64";
    case DType::kI32:
      return "int32";
    case DType::kF8E4M3:
      return "fp8_e4m3";
  }
  return "?";
}

// Element type and dims of a tensor. A default-constructed type means "slot is
// not bound" (an optional bias, a gradient that nobody asked for).
struct TensorType {
  DType dtype = DType::kNone;
  int8_t rank = 0;  // 0..4; a scalar has rank 1 and dims {1}
  std::array<int64_t, 4> dims = {1, 1, 1, 1};

  constexpr TensorType() = default;
  constexpr TensorType(DType type, int64_t d0)
      : dtype(type), rank(1), dims{d0, 1, 1, 1} {}
  constexpr TensorType(DType type, int64_t d0, int64_t d1)
      : dtype(type), rank(2), dims{d0, d1, 1, 1} {}
  constexpr TensorType(DType type, int64_t d0, int64_t d1, int64_t d2)
      : dtype(type), rank(3), dims{d0, d1, d2, 1} {}
  constexpr TensorType(DType type, int64_t d0, int64_t d1, int64_t d2,
                       int64_t d3)
      : dtype(type), rank(4), dims{d0, d1, d2, d3} {}

  constexpr bool bound() const { return dtype != DType::kNone; }
  constexpr int64_t num_elements() const {
    return bound() ? dims[0] * dims[1] * dims[2] * dims[3] : 0;
  }
  constexpr int64_t bytes() const { return num_elements() * DTypeBytes(dtype); }
  // Elements of one row: all dims but the first.
  constexpr int64_t row_elements() const { return dims[1] * dims[2] * dims[3]; }
  // The same dims with elements of another type.
  constexpr TensorType WithDType(DType other) const {
    TensorType type = *this;
    type.dtype = other;
    return type;
  }
  constexpr bool operator==(const TensorType&) const = default;
};

// Every storage in an arena starts at a multiple of this and its size is
// rounded up to it: one cache line, and the widest vector register.
constexpr int64_t kAlignment = 64;
constexpr int64_t AlignUp(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// A view of storage that somebody else owns. Rows (dim 0) lie `row_stride`
// elements apart, which is row_elements() unless the view is a column range of
// a wider value (q, k and v within the output of the qkv product); all other
// dims are dense.
struct Tensor {
  void* data = nullptr;  // null: the slot is not bound
  TensorType type;
  int64_t row_stride = 0;

  bool bound() const { return data != nullptr; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace ebb
