// Layer normalisation. With h = (x - mean) * rstd and g = dy * gain:
//   dx = rstd * (g - mean_d(g) - h * mean_d(g * h))
//   dgain_d += sum_n dy * h      dbias_d += sum_n dy
// A row is summed vector by vector, then across lanes. The parameter
// gradients sum rows in order, in blocks of kRowBlock, by columns.
#include "kernels/ops/layer_norm.h"

#include <cmath>

#include "kernels/cpu/element_type.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layer_norm.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

template <typename T>
struct LayerNormViews {
  explicit LayerNormViews(const OpCall& call)
      : epsilon(call.attrs->epsilon),
        x(call.slots[layer_norm::kX].as<T>()),
        gain(call.slots[layer_norm::kGain].as<T>()),
        bias(call.slots[layer_norm::kBias].as<T>()),
        y(call.slots[layer_norm::kY].as<T>()),
        mean(call.slots[layer_norm::kMean].as<float>()),
        rstd(call.slots[layer_norm::kRstd].as<float>()) {
    if (call.grads == nullptr) {
      width = call.slots[layer_norm::kX].type.dims[1];
      return;
    }
    width = call.grads[layer_norm::kY].type.dims[1];
    dy = call.grads[layer_norm::kY].as<T>();
    dx = call.grads[layer_norm::kX].as<T>();
    dgain = call.grads[layer_norm::kGain].as<float>();
    dbias = call.grads[layer_norm::kBias].as<float>();
  }

  size_t width = 0;  // D
  const float epsilon;
  const T* const x;        // N D
  const T* const gain;     // D
  const T* const bias;     // D, or null
  T* const y;              // N D
  float* const mean;       // N
  float* const rstd;       // N
  const T* dy = nullptr;   // N D
  T* dx = nullptr;         // N D, may be dy
  float* dgain = nullptr;  // D, or null
  float* dbias = nullptr;  // D, or null
};

// Rows whose sum is formed before it is added to the running total: keeps both
// the error and the working set small.
constexpr size_t kRowBlock = 64;

template <typename T>
void ForwardRows(const LayerNormViews<T>& views, size_t begin, size_t end) {
  const Floats d;
  const size_t width = views.width;
  const float inverse_width = 1.0f / static_cast<float>(width);
  for (size_t n = begin; n < end; ++n) {
    const T* x = views.x + n * width;
    T* y = views.y + n * width;
    FloatVec sum = hn::Zero(d);
    ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
      sum = hn::Add(sum, LoadSome(x + i, count));
    });
    const float mean = SumLanes(sum) * inverse_width;
    const FloatVec means = hn::Set(d, mean);
    FloatVec squares = hn::Zero(d);
    ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec difference =
          OrZero(hn::Sub(LoadSome(x + i, count), means), count);
      squares = hn::MulAdd(difference, difference, squares);
    });
    const float rstd =
        1.0f / std::sqrt(SumLanes(squares) * inverse_width + views.epsilon);
    const FloatVec rstds = hn::Set(d, rstd);
    ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec normal =
          hn::Mul(hn::Sub(LoadSome(x + i, count), means), rstds);
      const FloatVec gain = LoadSome(views.gain + i, count);
      StoreSome(views.bias == nullptr
                    ? hn::Mul(normal, gain)
                    : hn::MulAdd(normal, gain, LoadSome(views.bias + i, count)),
                y + i, count);
    });
    views.mean[n] = mean;
    views.rstd[n] = rstd;
  }
}

template <typename T>
void BackwardRows(const LayerNormViews<T>& views, size_t begin, size_t end) {
  const Floats d;
  const size_t width = views.width;
  const float inverse_width = 1.0f / static_cast<float>(width);
  for (size_t n = begin; n < end; ++n) {
    const T* x = views.x + n * width;
    const T* dy = views.dy + n * width;
    T* dx = views.dx + n * width;
    const FloatVec mean = hn::Set(d, views.mean[n]);
    const FloatVec rstd = hn::Set(d, views.rstd[n]);
    FloatVec sum = hn::Zero(d);
    FloatVec dot = hn::Zero(d);
    ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
      // Zero beyond the tail, since gain is.
      const FloatVec g =
          hn::Mul(LoadSome(dy + i, count), LoadSome(views.gain + i, count));
      const FloatVec h = hn::Mul(hn::Sub(LoadSome(x + i, count), mean), rstd);
      sum = hn::Add(sum, g);
      dot = hn::MulAdd(g, h, dot);
    });
    const FloatVec mean_g = hn::Set(d, SumLanes(sum) * inverse_width);
    const FloatVec mean_gh = hn::Set(d, SumLanes(dot) * inverse_width);
    ForEachVector(width, [&](size_t i, auto count) HWY_ATTR {
      const FloatVec g =
          hn::Mul(LoadSome(dy + i, count), LoadSome(views.gain + i, count));
      const FloatVec h = hn::Mul(hn::Sub(LoadSome(x + i, count), mean), rstd);
      const FloatVec centred = hn::Sub(g, mean_g);
      StoreSome(hn::Mul(rstd, hn::NegMulAdd(h, mean_gh, centred)), dx + i,
                count);
    });
  }
}

// Adds columns begin .. end - 1 of the parameter gradients, over all rows.
template <typename T>
void BackwardColumns(const LayerNormViews<T>& views, size_t num_rows,
                     size_t begin, size_t end) {
  const Floats d;
  const size_t width = views.width;
  for (size_t block = 0; block < num_rows; block += kRowBlock) {
    const size_t block_end = HWY_MIN(block + kRowBlock, num_rows);
    ForEachVector(end - begin, [&](size_t i, auto count) HWY_ATTR {
      const size_t column = begin + i;
      FloatVec gain_sum = hn::Zero(d);
      FloatVec bias_sum = hn::Zero(d);
      for (size_t n = block; n < block_end; ++n) {
        const FloatVec dy = LoadSome(views.dy + n * width + column, count);
        bias_sum = hn::Add(bias_sum, dy);
        if (views.dgain == nullptr) continue;
        const FloatVec x = LoadSome(views.x + n * width + column, count);
        const FloatVec h = hn::Mul(hn::Sub(x, hn::Set(d, views.mean[n])),
                                   hn::Set(d, views.rstd[n]));
        gain_sum = hn::MulAdd(dy, h, gain_sum);
      }
      if (views.dgain != nullptr) {
        float* to = views.dgain + column;
        StoreSome(hn::Add(LoadSome(to, count), gain_sum), to, count);
      }
      if (views.dbias != nullptr) {
        float* to = views.dbias + column;
        StoreSome(hn::Add(LoadSome(to, count), bias_sum), to, count);
      }
    });
  }
}

void LayerNormForwardRows(const OpCall& call, size_t begin, size_t end) {
  WithElementType(call.slots[layer_norm::kX].type.dtype, [&](auto element) {
    ForwardRows(LayerNormViews<decltype(element)>(call), begin, end);
  });
}

void LayerNormBackwardRows(const OpCall& call, size_t begin, size_t end) {
  WithElementType(call.grads[layer_norm::kY].type.dtype, [&](auto element) {
    BackwardRows(LayerNormViews<decltype(element)>(call), begin, end);
  });
}

void LayerNormBackwardColumns(const OpCall& call, size_t begin, size_t end) {
  const TensorType& type = call.grads[layer_norm::kY].type;
  WithElementType(type.dtype, [&](auto element) {
    BackwardColumns(LayerNormViews<decltype(element)>(call), type.dims[0],
                    begin, end);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {
namespace {

HWY_EXPORT(LayerNormForwardRows);
HWY_EXPORT(LayerNormBackwardRows);
HWY_EXPORT(LayerNormBackwardColumns);

// Columns that one thread takes at least: whole cache lines.
constexpr int64_t kColumnGrain = 64;

}  // namespace

void LayerNormForward(const OpCall& call, Stream) {
  const TensorType& type = call.slots[layer_norm::kX].type;
  ParallelFor(type.dims[0], RowGrain(type.dims[1]),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(LayerNormForwardRows)(call, begin, end);
              });
}

void LayerNormBackward(const OpCall& call, Stream) {
  const TensorType& type = call.grads[layer_norm::kY].type;
  // First, since dx may lie where dy does.
  if (call.grads[layer_norm::kGain].bound() ||
      call.grads[layer_norm::kBias].bound()) {
    ParallelFor(type.dims[1], kColumnGrain, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(LayerNormBackwardColumns)(call, begin, end);
    });
  }
  if (call.grads[layer_norm::kX].bound()) {
    ParallelFor(type.dims[0], RowGrain(type.dims[1]),
                [&](int64_t begin, int64_t end) {
                  HWY_DYNAMIC_DISPATCH(LayerNormBackwardRows)(call, begin, end);
                });
  }
}

}  // namespace ebb::cpu
#endif  // HWY_ONCE
