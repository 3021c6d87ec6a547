// Linear: three matrix products and a column sum.
#include "kernels/ops/linear.h"

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

// Adds the sums of columns begin .. end - 1 of dy, rows in order in blocks of
// 64, whose sums are formed before they join the total.
template <typename T>
void SumColumns(const T* dy, size_t row_stride, size_t num_rows, float* dbias,
                size_t begin, size_t end) {
  constexpr size_t kRowBlock = 64;
  const Floats d;
  for (size_t block = 0; block < num_rows; block += kRowBlock) {
    const size_t block_end = HWY_MIN(block + kRowBlock, num_rows);
    ForEachVector(end - begin, [&](size_t i, auto count) HWY_ATTR {
      const T* from = dy + begin + i;
      FloatVec sum = hn::Zero(d);
      for (size_t n = block; n < block_end; ++n) {
        sum = hn::Add(sum, LoadSome(from + n * row_stride, count));
      }
      float* to = dbias + begin + i;
      StoreSome(hn::Add(LoadSome(to, count), sum), to, count);
    });
  }
}

void BiasBackwardColumns(const Tensor& dy, float* dbias, size_t begin,
                         size_t end) {
  WithElementType(dy.type.dtype, [&](auto element) {
    SumColumns(dy.as<decltype(element)>(), dy.row_stride, dy.type.dims[0],
               dbias, begin, end);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {
namespace {

HWY_EXPORT(BiasBackwardColumns);

// Columns that one thread takes at least: whole cache lines.
constexpr int64_t kColumnGrain = 64;

}  // namespace

void LinearForward(const OpCall& call, Stream) {
  const Tensor& x = call.slots[linear::kX];
  const Tensor& weight = call.slots[linear::kWeight];
  const Tensor& y = call.slots[linear::kY];
  // y = x weight^T + bias
  MultiplyMatrices({.m = x.type.dims[0],
                    .n = weight.type.dims[0],
                    .k = weight.type.dims[1],
                    .dtype = x.type.dtype,
                    .a = x.data,
                    .a_stride = x.row_stride,
                    .b = weight.data,
                    .b_stride = weight.row_stride,
                    .b_transposed = true,
                    .c_dtype = y.type.dtype,
                    .c = y.data,
                    .c_stride = y.row_stride,
                    .bias = call.slots[linear::kBias].data,
                    .tail = call.tail},
                   call.workspace, call.workspace_bytes);
}

void LinearBackward(const OpCall& call, Stream) {
  const Tensor& dy = call.grads[linear::kY];
  const int64_t num_rows = dy.type.dims[0];
  const int64_t out_width = dy.type.dims[1];
  if (const Tensor& dx = call.grads[linear::kX]; dx.bound()) {
    const Tensor& weight = call.slots[linear::kWeight];
    // dx = dy weight
    MultiplyMatrices({.m = num_rows,
                      .n = dx.type.dims[1],
                      .k = out_width,
                      .dtype = dy.type.dtype,
                      .a = dy.data,
                      .a_stride = dy.row_stride,
                      .b = weight.data,
                      .b_stride = weight.row_stride,
                      .c_dtype = dx.type.dtype,
                      .c = dx.data,
                      .c_stride = dx.row_stride,
                      .tail = call.tail},
                     call.workspace, call.workspace_bytes);
  }
  if (const Tensor& dweight = call.grads[linear::kWeight]; dweight.bound()) {
    const Tensor& x = call.slots[linear::kX];
    // dweight += dy^T x
    MultiplyMatrices({.m = out_width,
                      .n = dweight.type.dims[1],
                      .k = num_rows,
                      .dtype = dy.type.dtype,
                      .a = dy.data,
                      .a_stride = dy.row_stride,
                      .a_transposed = true,
                      .b = x.data,
                      .b_stride = x.row_stride,
                      .c = dweight.data,
                      .c_stride = dweight.row_stride,
                      .add = true},
                     call.workspace, call.workspace_bytes);
  }
  if (const Tensor& dbias = call.grads[linear::kBias]; dbias.bound()) {
    ParallelFor(out_width, kColumnGrain, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(BiasBackwardColumns)
      (dy, dbias.as<float>(), begin, end);
    });
  }
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
