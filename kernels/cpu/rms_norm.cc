// Root mean square normalisation. With h = x * rstd and g = dy * gain:
//   dx = rstd * (g - h * mean_d(g * h))      dgain_d += sum_n dy * h
// A row is summed vector by vector, then across lanes. The gradient of gain
// sums rows in order, in blocks of kRowBlock, by columns.
#include "kernels/ops/rms_norm.h"

#include <cmath>

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

template <typename T>
struct RmsNormViews {
  explicit RmsNormViews(const OpCall& call)
      : width(call.slots[rms_norm::kX].type.dims[1]),
        epsilon(call.attrs->epsilon),
        x(call.slots[rms_norm::kX].as<T>()),
        gain(call.slots[rms_norm::kGain].as<T>()),
        y(call.slots[rms_norm::kY].as<T>()),
        rstd(call.slots[rms_norm::kRstd].as<float>()) {
    if (call.grads == nullptr) return;
    dy = call.grads[rms_norm::kY].as<T>();
    dx = call.grads[rms_norm::kX].as<T>();
    dgain = call.grads[rms_norm::kGain].as<float>();
  }

  const size_t width;  // D
  const float epsilon;
  const T* const x;        // N D
  const T* const gain;     // D
  T* const y;              // N D
  float* const rstd;       // N
  const T* dy = nullptr;   // N D
  T* dx = nullptr;         // N D, may be dy
  float* dgain = nullptr;  // D
};

// Rows whose sum is formed before it is added to the running total: keeps both
// the error and the working set small.
constexpr size_t kRowBlock = 64;

template <typename T>
void ForwardRows(const RmsNormViews<T>& views, size_t begin, size_t end) {
  const Floats d;
  const size_t width = views.width;
  const float inverse_width = 1.0f / static_cast<float>(width);
  for (size_t n = begin; n < end; ++n) {
    const T* x = views.x + n * width;
    T* y = views.y + n * width;
    FloatVec squares = hn::Zero(d);
    ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec value = LoadSome(x + i, count);
      squares = hn::MulAdd(value, value, squares);
    });
    const float rstd =
        1.0f / std::sqrt(SumLanes(squares) * inverse_width + views.epsilon);
    const FloatVec rstds = hn::Set(d, rstd);
    ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
      StoreSome(hn::Mul(hn::Mul(LoadSome(x + i, count), rstds),
                        LoadSome(views.gain + i, count)),
                y + i, count);
    });
    views.rstd[n] = rstd;
  }
}

template <typename T>
void BackwardRows(const RmsNormViews<T>& views, size_t begin, size_t end) {
  const Floats d;
  const size_t width = views.width;
  const float inverse_width = 1.0f / static_cast<float>(width);
  for (size_t n = begin; n < end; ++n) {
    const T* x = views.x + n * width;
    const T* dy = views.dy + n * width;
    T* dx = views.dx + n * width;
    const FloatVec rstd = hn::Set(d, views.rstd[n]);
    FloatVec dot = hn::Zero(d);
    ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec g =
          hn::Mul(LoadSome(dy + i, count), LoadSome(views.gain + i, count));
      dot = hn::MulAdd(g, hn::Mul(LoadSome(x + i, count), rstd), dot);
    });
    const FloatVec mean = hn::Set(d, SumLanes(dot) * inverse_width);
    ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec g =
          hn::Mul(LoadSome(dy + i, count), LoadSome(views.gain + i, count));
      const FloatVec h = hn::Mul(LoadSome(x + i, count), rstd);
      StoreSome(hn::Mul(rstd, hn::NegMulAdd(h, mean, g)), dx + i, count);
    });
  }
}

// Adds columns begin .. end - 1 of the gradient of gain, over all rows.
template <typename T>
void BackwardColumns(const RmsNormViews<T>& views, size_t num_rows,
                     size_t begin, size_t end) {
  const Floats d;
  const size_t width = views.width;
  for (size_t block = 0; block < num_rows; block += kRowBlock) {
    const size_t block_end = HWY_MIN(block + kRowBlock, num_rows);
    ForEachVector(end - begin, [&](size_t i, auto count) HWY_ATTR {
      const size_t column = begin + i;
      FloatVec sum = hn::Zero(d);
      for (size_t n = block; n < block_end; ++n) {
        const FloatVec dy = LoadSome(views.dy + n * width + column, count);
        const FloatVec x = LoadSome(views.x + n * width + column, count);
        sum = hn::MulAdd(dy, hn::Mul(x, hn::Set(d, views.rstd[n])), sum);
      }
      float* to = views.dgain + column;
      StoreSome(hn::Add(LoadSome(to, count), sum), to, count);
    });
  }
}

void RmsNormForwardRows(const OpCall& call, size_t begin, size_t end) {
  WithElementType(call.slots[rms_norm::kX].type.dtype, [&](auto element) {
    ForwardRows(RmsNormViews<decltype(element)>(call), begin, end);
  });
}

void RmsNormBackwardRows(const OpCall& call, size_t begin, size_t end) {
  WithElementType(call.slots[rms_norm::kX].type.dtype, [&](auto element) {
    BackwardRows(RmsNormViews<decltype(element)>(call), begin, end);
  });
}

void RmsNormBackwardColumns(const OpCall& call, size_t begin, size_t end) {
  const TensorType& type = call.slots[rms_norm::kX].type;
  WithElementType(type.dtype, [&](auto element) {
    BackwardColumns(RmsNormViews<decltype(element)>(call), type.dims[0], begin,
                    end);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {
namespace {

HWY_EXPORT(RmsNormForwardRows);
HWY_EXPORT(RmsNormBackwardRows);
HWY_EXPORT(RmsNormBackwardColumns);

// Columns that one thread takes at least: whole cache lines.
constexpr int64_t kColumnGrain = 64;

}  // namespace

void RmsNormForward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[rms_norm::kX].type;
  ParallelFor(type.dims[0], RowGrain(type.dims[1]),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(RmsNormForwardRows)(call, begin, end);
              });
}

void RmsNormBackward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[rms_norm::kX].type;
  // First, since dx may lie where dy does.
  if (call.grads[rms_norm::kGain].bound()) {
    ParallelFor(type.dims[1], kColumnGrain, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(RmsNormBackwardColumns)
      (call, begin, end);
    });
  }
  if (call.grads[rms_norm::kX].bound()) {
    ParallelFor(type.dims[0], RowGrain(type.dims[1]),
                [&](int64_t begin, int64_t end) {
                  HWY_DYNAMIC_DISPATCH(RmsNormBackwardRows)
                  (call, begin, end);
                });
  }
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
